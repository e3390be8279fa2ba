"""Convert a model between bert_jax, Hugging Face and TF1, and verify that its outputs are the same.

    bert-jax convert --input=runs/mini --output=exported --to=huggingface
    bert-jax convert --input=uncased_L-12_H-768_A-12/bert_model.ckpt --output=base --to=bert_jax

The input's format is detected. The output is read back and compared with what was to be written, bit for bit
and by a forward pass on random inputs; it is deleted if the two differ. TF1 checkpoints need the extra
`tensorflow`. Further flags change vocabulary, size and precision during the conversion.
"""

from __future__ import annotations

import os
import re
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands.flags import models, surgery
from bert_jax.errors import UserError
from bert_jax.settings.flags import Define, command_line

with epy.lazy_imports():
    from bert_jax.convert import conversion, formats, model_card
    from bert_jax.convert.formats import huggingface


def define_flags(define: Define) -> None:
    """Defines the flags."""
    define.string(
        "input", f"The model: {models.CHECKPOINT}.", required=f"PATH, the model: {models.CHECKPOINT}"
    )
    define.string("output", "Directory to write.", required="DIR, a new directory")
    define.overwrite()
    define.string(
        "to",
        "Format to write: huggingface, tensorflow or bert_jax; peft for the low-rank updates of a run.",
        required="huggingface, tensorflow, bert_jax or peft",
    )
    define.string(
        "ignore",
        "Regular expression of tensors to leave out: only tensors that are not part of a BERT model may "
        "match.",
        "",
    )
    surgery.add(define)
    define.string(
        "max_shard_size",
        "Maximum size of a file of weights in a Hugging Face folder; larger weights are split into several "
        "files. Default: 5GB.",
    )
    define.string(
        "push_to",
        "Also upload the Hugging Face folder to the hub as USER/NAME, with the token of `hf auth login`.",
        "",
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    target = formats.get(flags.to)
    if flags.push_to:
        if target is not huggingface.FORMAT:
            raise UserError(
                f"--push_to uploads a Hugging Face folder and needs --to=huggingface, but got --to={flags.to}"
            )
        model_card.check_push(flags.push_to)
    if not target.takes_changes:
        surgery.check_absent(flags)
    command = command_line("convert", flags)
    options: dict[str, Any] = {}
    if "card" in target.write_options:
        options["card"] = lambda model: model_card.make(model, flags.input, command)
    if flags.max_shard_size:
        if "max_shard_bytes" not in target.write_options:
            raise UserError(
                f"--max_shard_size={flags.max_shard_size} is for --to=huggingface: the format {flags.to} "
                "has no shards"
            )
        options["max_shard_bytes"] = parse_size(flags.max_shard_size)
    conversion.convert(
        flags.input,
        flags.output,
        flags.to,
        ignore=flags.ignore,
        change=lambda model, scratch: surgery.apply(flags, model, print, os.path.join(scratch, "vocab.txt")),
        overwrite=flags.overwrite,
        **options,
    )
    if flags.push_to:
        print(f"pushed to {model_card.push(flags.output, flags.push_to)}")
    return 0


def parse_size(text: str) -> int:
    """Returns the number of bytes of a size such as "500MB" or "5GB", in powers of 1000.

    Raises:
        UserError: the text is not a size.
    """
    match = re.fullmatch(r"(\d{1,20}(?:\.\d+)?)\s*([kMGT]?)B?", text.strip(), re.IGNORECASE)
    size = match and int(float(match[1]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[match[2].upper()])
    if not size:
        raise UserError(f"--max_shard_size={text}: expected a size such as 500MB or 5GB")
    return size
