"""bert_jax: BERT pre-training and fine-tuning in JAX and Flax, from raw text to a task's score.

    import bert_jax
    model = bert_jax.load("runs/mini")
    out = model.encode(["one text", ("a", "pair")])
    run = bert_jax.finetune(workdir="runs/reviews", init_from="runs/mini",
                            train="train.csv", eval="dev.csv", text_a="review", label="stars")
    run.predictor().predict_rows(["a text"])

The names in `__all__` are imported when they are first used, so that the command line starts quickly and
worker processes do not import jax. Import everything else from its module (`from bert_jax.parallel import
sharding`). `__init__.pyi` has the same names, for type checkers.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "Embedder",
    "EncoderConfig",
    "Encoding",
    "LoadedModel",
    "Predictor",
    "Run",
    "finetune",
    "load",
    "pretrain",
]

_ELSEWHERE = {"Embedder": "inference.embedding", "Predictor": "inference.predictor"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # By its name, because every module of the package imports this one.
    module = _ELSEWHERE.get(name, "library")
    return getattr(importlib.import_module(f"bert_jax.{module}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
