"""Show what is in records, a vocabulary or a checkpoint, and what is wrong with it.

    bert-jax inspect records/ vocab.txt runs/mini

PATH is a directory of records or a record file (every row is read and its CRCs are checked), a vocab.txt, a
SentencePiece .model or the tokenizer.json of byte-level BPE, a work directory or one of its checkpoints, a
Hugging Face folder, or the folder of a TF1 checkpoint. Records are those of `bert-jax data`, or those of
google-research/bert's create_pretraining_data, which --vocab=FILE decodes. The exit code is 0 if everything
is sound, and 1 if something is wrong.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.errors import UserError, file_error, is_full
from bert_jax.io import files
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import checkpoint, convert, tokenization
    from bert_jax.convert import families, formats
    from bert_jax.data import google, inspection, manifests
    from bert_jax.models import config as model_config
    from bert_jax.workdir import run_directory


_KINDS = "records, a vocabulary, a work directory or a checkpoint"
_MOST_PROBLEMS = 20
_FORMS = {"seed": "{}", "sampling_exponent": "{:g}", "used": "{:.2f} times"}
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")  # named first

_METADATA = "_CHECKPOINT_METADATA"  # a file of each step

ARGUMENTS = "PATH ..."


def define_flags(define: Define) -> None:
    """Defines the flags."""
    define.json()
    define.string(
        "vocab",
        "Vocabulary to decode records that other programs made, or to compare with that of other records.",
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    if not args:
        raise UserError(f"inspect needs a PATH: {_KINDS}")
    sound = True
    try:
        for path in args:
            report = inspect(path, vocab=flags.vocab)
            sound = sound and not report.problems
            print(json.dumps(dataclasses.asdict(report)) if flags.json else "\n".join(lines(report)))
        return 0 if sound else 1
    except OSError as error:
        if isinstance(error, BrokenPipeError) or is_full(error):  # of the output
            raise
        raise file_error(f"{error.filename or args[0]}: {error.strerror or error}", error) from error


def inspect(path: str, examples: int = 3, vocab: str | None = None):
    """Returns a report on whatever is at a path.

    Args:
        path: a file or a directory.
        examples: number of decoded rows of each split of records.
        vocab: the vocabulary of records that other programs made.

    Raises:
        UserError: the content of the path is not known, or has no use for `vocab`.
    """
    path = str(convert.local_path(path))
    if not files.exists(path):
        raise UserError(f"{path}: no such file or directory; expected {_KINDS}")
    names = files.names(path)
    is_directory = any(map(google.is_record_file, names)) or {manifests.FILE, "unfinished"} & set(names)
    if is_directory or google.is_record_file(path):
        return inspection.inspect_records(path, vocab or "", examples)
    if vocab:
        raise UserError(f"--vocab={vocab} has no use for {path}; expected records")
    if files.is_file(path) and path.endswith((".txt", ".model", ".json")):
        return inspection.inspect_vocabulary(path)
    if "checkpoints" in names or _METADATA in names:
        return inspect_checkpoints(path)
    if "snapshots" in names or (names and formats.find(path)):
        return inspect_model(path)
    raise UserError(f"{path} contains neither records ({manifests.FILE}), nor a vocabulary, nor checkpoints")


def inspect_checkpoints(path: str):
    """Returns a report on every step of a work directory, or on one step, compared with its checksums."""
    is_step = files.exists(os.path.join(path, _METADATA))
    report = inspection.Report(path, "checkpoint" if is_step else "work directory")
    steps = {files.name(files.absolute(path)): path}  # by the names that the report has for them
    if report.kind == "work directory":
        directory = os.path.join(path, "checkpoints")
        names = files.names(directory)
        report.facts["set_aside"] = sorted(name for name in names if name.startswith("bad-"))
        steps = {name: os.path.join(directory, name) for name in _in_order(names)}
        if not steps:
            report.problems.append(f"{directory} contains no checkpoint")
        best = os.path.join(path, run_directory.BEST)
        of_best = _in_order(files.names(best)) if files.exists(best) else []
        steps = {f"{run_directory.BEST}/{name}": os.path.join(best, name) for name in of_best} | steps
    for name, step in steps.items():
        try:
            leaves = checkpoint.verify(step)
        except UserError as error:
            report.problems.append(str(error))
            continue
        facts = report.facts[name] = _describe(leaves)
        names = (name.removeprefix("params/") for name in facts["shapes"])
        report.facts["parts"] = _parts(names)  # the same for all steps of a run
    try:
        run_directory.find_root(path)
    except UserError:  # a checkpoint that stands alone
        return report
    try:
        report.facts |= _family(*convert.load_architecture(path))
    except UserError as error:
        report.problems.append(str(error))
    return report


def _in_order(names: Sequence[str]) -> list[str]:
    """Returns those of some names that are steps, in their order."""
    return sorted(filter(checkpoint.is_step, names), key=int)


def inspect_model(path: str):
    """Returns a report on a checkpoint in another format, such as a Hugging Face folder."""
    found = convert.detect(path)
    report = inspection.Report(path, found.title)
    try:
        model = found.read(path)
    except UserError as error:
        report.problems.append(str(error))
        return report
    report.facts["head"] = model.head
    report.facts["parameters"] = model.parameter_count
    shapes = {name: list(array.shape) for name, array in model.params.items()}
    report.facts["parts"] = _parts(shapes)
    report.facts |= _family(model.config, model.tokenizer) | {"shapes": shapes}
    return report


def _parts(names: Iterable[str]) -> str:
    """Returns the parameter groups, which are the encoder and the heads that a model has."""
    return ", ".join(dict.fromkeys(name.split("/")[0] for name in names))


def _family(config: model_config.EncoderConfig, tokenizer: tokenization.Tokenizer | None) -> dict[str, Any]:
    """Returns the family of a model, its sizes, what it computes otherwise than BERT, and its vocabulary."""
    defaults, own = model_config.EncoderConfig().to_dict(), config.to_dict()
    sizes = dict.fromkeys((*_SIZES, *model_config.SIZE_FIELDS))
    usual = {*sizes, *model_config.DROPOUT_FIELDS, *model_config.EXECUTION_FIELDS, "model_type"}
    other = {name: x for name, x in own.items() if name not in usual and x != defaults[name]}
    vocabulary = "none"
    if tokenizer is not None:
        case = ", lower case" * tokenizer.lower_case
        vocabulary = (
            f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens{case}; rows "
            f"{tokenizer.template.single!r} and {tokenizer.template.pair!r}"
        )
    return {
        "family": families.of(config).name,
        "architecture": {name: own[name] for name in sizes},
        "unlike_bert": {name: f"{x:g}" if isinstance(x, float) else x for name, x in other.items()},
        "vocabulary": vocabulary,
    }


def _describe(leaves: dict[str, Any]) -> dict[str, Any]:
    shapes = {name: list(leaf.shape) for name, leaf in leaves.items() if name.startswith("params/")}
    return {
        "leaves": len(leaves),
        "parameters": sum(map(math.prod, shapes.values())),
        "dtypes": sorted({leaf.dtype for leaf in leaves.values()}),
        "shapes": shapes,
    }


def lines(report) -> Iterator[str]:
    """Yields the lines of a report; facts that are zero or empty are not shown."""
    yield f"{report.path}: {report.kind}"
    for name, value in report.facts.items():
        yield from (f"  {line}" for line in _fact_lines(name, value))
    for example in report.examples:
        yield f"  {example}"
    for problem in report.problems[:_MOST_PROBLEMS]:
        yield f"  WRONG: {problem}"
    if len(report.problems) > _MOST_PROBLEMS:
        yield f"  WRONG: ... and {len(report.problems) - _MOST_PROBLEMS} more"
    if not report.problems:
        yield "  sound"


def _fact_lines(name: str, value: Any) -> Iterator[str]:
    if name in ("shapes", "examples") or not (value or name == "seed"):
        return
    if name == "sequence_lengths":
        yield "length of sequences:"
        yield from (f"  {line}" for line in inspection.text_histogram(value))
    elif name == "sequences_per_row":
        rows = enumerate(value)
        yield "sequences per row: " + ", ".join(f"{i}: {n / sum(value):.1%}" for i, n in rows if n)
    elif name == "reasons":
        yield f"{name}: " + ", ".join(f"{key!r} {count:,}" for key, count in value.items())
    elif isinstance(value, dict):
        plain = {key: inner for key, inner in value.items() if not isinstance(inner, dict | list)}
        shown = ", ".join(f"{key} {_number(key, inner)}" for key, inner in plain.items())
        yield f"{name}: {shown}".rstrip()
        for key, inner in value.items():
            if key not in plain:
                yield from (f"  {line}" for line in _fact_lines(key, inner))
    else:
        shown = ", ".join(map(str, value)) if isinstance(value, list) else _number(name, value)
        yield f"{name}: {shown}"


def _number(name: str, value: Any) -> str:
    """Returns the value of a fact as text: a float as a percentage, unless its name has another form."""
    if name in _FORMS:
        return _FORMS[name].format(value)
    if isinstance(value, float):
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
