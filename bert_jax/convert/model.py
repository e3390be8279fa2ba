"""A model on its way from one format to another."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.convert import param_mapping
from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig
from bert_jax.tokenization import Tokenizer

# The groups of parameters that make up a model with each head; a pooler in brackets may be there or not.
HEADS: dict[str, tuple[str, ...]] = {
    "none": ("encoder", "(pooler)"),
    "pretraining": ("encoder", "pooler", "mlm", "nsp"),
    "masked_lm": ("encoder", "(pooler)", "mlm"),
    "sequence_classification": ("encoder", "pooler", "classifier"),
    "token_classification": ("encoder", "(pooler)", "classifier"),
    "multiple_choice": ("encoder", "pooler", "classifier"),
    "question_answering": ("encoder", "(pooler)", "qa"),
}


@dataclasses.dataclass(frozen=True)
class Model:
    """A whole model in memory: architecture, parameters, vocabulary.

    Attributes:
        config: the architecture. How it is computed (dtype, attention, ...) is of no account here.
        params: arrays by flat names as in a checkpoint (`encoder/embeddings/word_embeddings`), float32 unless
            they were cast; a layer's parameters are stacked along a leading axis [layers, ...].
        head: a name of `HEADS`.
        tokenizer: of the model; None where the source has no vocabulary.
        labels: names of the classes in the order of the logits; None where there are none.
        problem_type: what a sequence classification learns: "single_label_classification",
            "multi_label_classification" or "regression", as transformers calls it; "" where it is not known,
            and of other heads.
        source: where it came from, for messages and the model card.
    """

    config: EncoderConfig
    params: Mapping[str, np.ndarray]
    head: str = "none"
    tokenizer: Tokenizer | None = None
    labels: tuple[str, ...] | None = None
    source: str = ""
    problem_type: str = ""

    def __post_init__(self):
        """Raises UserError where a parameter is missing, of another shape, or of no group of the head."""
        groups = [group for group in HEADS[self.head] if not group.startswith("(")]
        present = {name.split("/")[0] for name in self.params}
        groups += [g.strip("()") for g in HEADS[self.head] if g.startswith("(") and g.strip("()") in present]
        classes = self.params["classifier/bias"].shape[0] if "classifier/bias" in self.params else 2
        expected = param_mapping.shapes(self.config, groups, classes)
        missing = [name for name in expected if name not in self.params]
        unexpected = [name for name in self.params if name not in expected]
        misshapen = [
            f"{name} is {list(self.params[name].shape)}, expected {list(expected[name])}"
            for name in expected
            if name in self.params and tuple(self.params[name].shape) != expected[name]
        ]
        for what, which in (("lacks", missing), ("has beyond it", unexpected), ("differs in", misshapen)):
            if which:
                raise UserError(
                    f"{self.source or 'the model'}: as a BERT with head {self.head} it {what} {_some(which)}"
                )
        if self.tokenizer is not None and self.tokenizer.vocab_size > self.config.vocab_size:
            raise UserError(
                f"{self.source or 'the model'}: its vocabulary {self.tokenizer.path} has "
                f"{self.tokenizer.vocab_size} tokens and its table of embeddings {self.config.vocab_size} "
                "rows: they do not belong together"
            )

    def replace(self, **changes) -> Model:
        return dataclasses.replace(self, **changes)


def check_found(source: str, found: param_mapping.Found, ignore: str = "") -> None:
    """Raises UserError unless every tensor of a file has been understood.

    Args:
        ignore: a regular expression; what is unknown and wholly matched by it may stay behind.
    """
    try:
        ignored = re.compile(ignore)
    except re.error as error:
        raise UserError(f"{ignore!r} is no regular expression ({error})") from error
    unknown = [name for name in found.unknown if not ignored.fullmatch(name)]
    if found.missing:
        raise UserError(f"{source}: it lacks {_some(found.missing)}: expected every layer to be whole")
    if found.misshapen:
        raise UserError(
            f"{source}: {_some(found.misshapen)}: it is not of the architecture its configuration says"
        )
    if unknown:
        parts = dict.fromkeys(re.escape(re.split("[./]", name)[0]) + ".*" for name in unknown)
        complete = "|".join([*filter(None, [ignore]), *parts])
        raise UserError(
            f"{source}: it has {_some(unknown)}, which no BERT has; if that may be left behind: "
            f"--ignore='{complete}' of convert, --config.init_ignore='{complete}' in training"
        )


def _some(which: Sequence[str]) -> str:
    return ", ".join(which[:3]) + (f" and {len(which) - 3} more" if len(which) > 3 else "")


def head_of(params: Mapping[str, np.ndarray], classifier: str = "sequence_classification") -> str:
    """The head that a set of parameters has; `classifier` says what a `classifier/` group is of."""
    groups = {name.split("/")[0] for name in params}
    if "qa" in groups:
        return "question_answering"
    if "classifier" in groups:
        return classifier
    if "mlm" in groups:
        return "pretraining" if "nsp" in groups else "masked_lm"
    return "none"
