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

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import output_flags, surgery_flags
from bert_jax.commands.run_flags import command_line
from bert_jax.errors import UserError

with epy.lazy_imports():
    from bert_jax.convert import conversion, formats, model_card
    from bert_jax.convert.formats import huggingface


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    absl_flags.DEFINE_string(
        "input",
        None,
        "Work directory or one of its steps, Hugging Face folder, or TF1 prefix.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_string("output", None, "Directory to write.", flag_values=flag_values)
    output_flags.define_overwrite(flag_values)
    absl_flags.DEFINE_string(
        "to", None, "Format to write: huggingface, tensorflow or bert_jax.", flag_values=flag_values
    )
    absl_flags.DEFINE_string(
        "ignore",
        "",
        "Regular expression: tensors of the input that no BERT has and whose names it matches stay behind.",
        flag_values=flag_values,
    )
    surgery_flags.define_flags(flag_values)
    absl_flags.DEFINE_string(
        "max_shard_size",
        None,
        "Weights of a Hugging Face folder over this are split into several files; 5GB by default.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_string(
        "push_to",
        "",
        "Also upload the Hugging Face folder to the hub as USER/NAME, under the token of `hf auth login`.",
        flag_values=flag_values,
    )


def run(flags, args: list[str]) -> int:
    if args:
        raise UserError(f"convert takes no arguments besides its flags, but was given {args[0]!r}")
    for name, example in (
        ("input", "a work directory, a Hugging Face folder or a TF1 prefix"),
        ("output", "a new directory"),
        ("to", "huggingface, tensorflow or bert_jax"),
    ):
        if not flags[name].value:
            raise UserError(f"convert needs --{name}: {example}")
    target = formats.get(flags.to)
    if flags.push_to:
        if target is not huggingface.FORMAT:
            raise UserError(f"--push_to takes a Hugging Face folder; give --to=huggingface, not {flags.to}")
        model_card.check_push(flags.push_to)
    command = command_line("convert", flags)
    options = {}
    if "card" in target.write_options:
        options["card"] = lambda model: model_card.make(model, flags.input, command)
    if flags.max_shard_size:
        if "max_shard_bytes" not in target.write_options:
            raise UserError(
                f"--max_shard_size={flags.max_shard_size}: the format {flags.to} has no shards; leave it out"
            )
        options["max_shard_bytes"] = parse_size(flags.max_shard_size)
    conversion.convert(
        flags.input,
        flags.output,
        flags.to,
        ignore=flags.ignore,
        change=lambda model, scratch: surgery_flags.apply(
            flags, model, print, os.path.join(scratch, "vocab.txt")
        ),
        overwrite=flags.overwrite,
        **options,
    )
    if flags.push_to:
        print(f"pushed to {model_card.push(flags.output, flags.push_to)}")
    return 0


def parse_size(text: str) -> int:
    """Bytes of "500MB" or "5GB", decimal as on a disk's label.

    Raises:
        UserError: it is no size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", text.strip(), re.IGNORECASE)
    size = match and int(float(match[1]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[match[2].upper()])
    if not size:
        raise UserError(f"--max_shard_size={text}: expected a size such as 500MB or 5GB")
    return size
