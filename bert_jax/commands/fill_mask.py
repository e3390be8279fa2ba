"""Show the most likely words for each [MASK] of a text.

    bert-jax fill-mask --checkpoint=runs/mini "The capital of [MASK] is [MASK]."

Without a text, lines are read from standard input.
"""

from __future__ import annotations

import json
import sys

from absl import flags as absl_flags
from etils import epy

from bert_jax.errors import UserError
from bert_jax.kernels.dispatch import DTYPES

with epy.lazy_imports():
    from bert_jax.inference import fill_mask
    from bert_jax.parallel import compiler_options


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    absl_flags.DEFINE_string(
        "checkpoint",
        None,
        "Work directory of `bert-jax pretrain` or one of its steps, Hugging Face folder, or TF1 prefix.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_integer("top", 5, "Candidates for each [MASK].", flag_values=flag_values)
    absl_flags.DEFINE_enum(
        "dtype",
        "auto",
        DTYPES,
        "Of the computation; auto: float32 on CPUs, else that of the checkpoint's run, or bfloat16.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_bool("json", False, "Print one JSON object a text.", flag_values=flag_values)


def run(flags, args: list[str]) -> int:
    if not flags.checkpoint:
        raise UserError("which model? give --checkpoint=DIR, a pre-trained model")
    if flags.top < 1:
        raise UserError(f"--top={flags.top}: expected at least 1")
    texts = args or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not texts:
        raise UserError('which text? give one with [MASK] in it, such as "The [MASK] is read from the file."')
    compiler_options.enable_compilation_cache()
    filler = fill_mask.MaskFiller(flags.checkpoint, lambda line: print(line, file=sys.stderr), flags.dtype)
    found = filler(texts, flags.top)
    for text, masks in zip(texts, found, strict=True):
        if flags.json:
            rows = [
                [{"token": c.token, "probability": round(c.probability, 6)} for c in mask] for mask in masks
            ]
            print(json.dumps({"text": text, "masks": rows}, ensure_ascii=False))
        else:
            print(format_candidates(text, masks))
    return 0


def format_candidates(text: str, masks) -> str:
    """The text, and a line for each [MASK] with its candidates and their probabilities."""
    lines = [text]
    for number, candidates in enumerate(masks, 1):
        shown = "  ".join(f"{c.token} {c.probability:.3f}" for c in candidates)
        lines.append(f"  {f'[MASK] {number}:' if len(masks) > 1 else '[MASK]:'} {shown}")
    return "\n".join(lines)
