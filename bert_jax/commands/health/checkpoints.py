"""The check of a model that a run will start from."""

from __future__ import annotations

import math

from etils import epy

from bert_jax.commands.health.check import OK, PROBLEM, Check
from bert_jax.errors import UserError
from bert_jax.io.wording import counted

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.convert import families
    from bert_jax.models import assembled


def check_checkpoint(path: str) -> Check:
    """Checks that a checkpoint is of a known family, with a vocabulary; its weights are not read."""
    try:
        config, tokenizer = convert.load_architecture(path)
    except UserError as error:
        return Check("checkpoint", PROBLEM, str(error), f"bert-jax inspect {path}")
    count = sum(map(math.prod, assembled.shapes(config, ("encoder",)).values()))
    detail = (
        f"{families.of(config).name}, {counted(config.num_hidden_layers, 'layer')} of {config.hidden_size}, "
        f"{count:,} parameters; {tokenizer.kind} vocabulary of {tokenizer.vocab_size:,} tokens, rows "
        f"{tokenizer.template.pair}"
    )
    return Check("checkpoint", OK, detail)
