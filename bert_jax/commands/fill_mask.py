"""Show the most likely words for each [MASK] of a text.

    bert-jax fill-mask --model=runs/mini "The capital of [MASK] is [MASK]."

Without TEXT, the command reads lines from standard input.
"""

import json

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.io import progress
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax.inference import fill_mask, text_files
    from bert_jax.parallel import compiler_options


ARGUMENTS = "[TEXT ...]"


def define_flags(define: Define) -> None:
    shared.add_model(define)
    define.integer("top", "Number of candidates per [MASK].", 5)
    define.json()


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    shared.at_least(flags, top=1)
    texts = args or [line for line in text_files.lines("-") if line.strip()]
    compiler_options.enable_compilation_cache()
    filler = fill_mask.MaskFiller(flags.model, progress.log, flags.dtype)
    found = filler(texts, flags.top)
    for text, masks in zip(texts, found, strict=True):
        if flags.json:
            rows = [
                [{"token": c.token, "probability": round(c.probability, 6)} for c in mask] for mask in masks
            ]
            print(json.dumps({"text": text, "masks": rows}, ensure_ascii=False))
        else:
            print(text)
            for number, candidates in enumerate(masks, 1):
                shown = "  ".join(f"{c.token} {c.probability:.3f}" for c in candidates)
                print(f"  {filler.mask}{f' {number}' if len(masks) > 1 else ''}: {shown}")
