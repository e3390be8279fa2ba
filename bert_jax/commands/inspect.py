"""Show the content and the problems of records, a vocabulary or a checkpoint.

    bert-jax inspect records/ vocab.txt runs/mini

PATH, by default the current directory, is a record file or a directory of records, a vocab.txt, a
SentencePiece .model, the tokenizer.json of byte-level BPE, a work directory or one of its checkpoints, a
Hugging Face folder, or the folder of a TF1 checkpoint. Every row of records is read and its CRC is checked.
--vocab decodes records of google-research/bert's create_pretraining_data. The exit code is 1 if there is a
problem, and 0 otherwise.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.errors import UserError, check_flag
from bert_jax.io import files
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import checkpoint, convert, tokenization
    from bert_jax.convert import families, formats
    from bert_jax.data import google, inspection, manifests
    from bert_jax.models import config as model_config
    from bert_jax.workdir import run_directory


_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")  # listed first

_METADATA = "_CHECKPOINT_METADATA"  # a file of each step

ARGUMENTS = "[PATH ...]"


def define_flags(define: Define) -> None:
    define.json()
    define.string(
        "vocab",
        "Vocabulary of records of other programs, to decode them, or one to compare with the records' "
        "vocabulary.",
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    sound = True
    for path in args or ["."]:
        report = inspect(path, flags.vocab)
        sound = sound and not report.problems
        print(json.dumps(dataclasses.asdict(report)) if flags.json else "\n".join(lines(report)))
    return 0 if sound else 1


def inspect(path: str, vocab: str | None):
    """Returns a report on whatever is at a path; UserError if it is unknown, or does not use `vocab`."""
    path = str(convert.local_path(path))
    names = files.names(path)
    is_directory = any(map(google.is_record_file, names)) or {manifests.FILE, "unfinished"} & set(names)
    if is_directory or google.is_record_file(path):
        return inspection.inspect_records(path, vocab or "")
    check_flag("vocab", vocab, not vocab, f"records to decode, not {path}")
    if files.is_file(path) and path.endswith((".txt", ".model", ".json")):
        return inspection.inspect_vocabulary(path)
    if "checkpoints" in names or _METADATA in names:
        return inspect_checkpoints(path)
    if "snapshots" in names or (names and formats.find(path)):
        return inspect_model(path)
    raise UserError(f"{path}: expected records, a vocabulary, a work directory or a checkpoint")


def inspect_checkpoints(path: str):
    """Returns a report on every step of a work directory, or on one step, compared with its checksums."""
    is_step = files.exists(os.path.join(path, _METADATA))
    report = inspection.Report(path, "checkpoint" if is_step else "work directory")
    steps = {files.name(files.absolute(path)): path}  # by their names in the report
    if not is_step:
        names = files.names(os.path.join(path, "checkpoints"))
        report.facts["set_aside"] = sorted(name for name in names if name.startswith("bad-"))
        steps = {}
        for folder, prefix in ((run_directory.BEST, f"{run_directory.BEST}/"), ("checkpoints", "")):
            names = filter(checkpoint.is_step, files.names(os.path.join(path, folder)))
            steps |= {f"{prefix}{name}": os.path.join(path, folder, name) for name in sorted(names, key=int)}
        if not steps:
            report.problems.append(f"{path} contains no checkpoint")
    for name, step in steps.items():
        try:
            leaves = checkpoint.verify(step)
        except UserError as error:
            report.problems.append(str(error))
            continue
        shapes = {name: list(leaf.shape) for name, leaf in leaves.items() if name.startswith("params/")}
        report.facts[name] = {
            "leaves": len(leaves),
            "parameters": sum(map(math.prod, shapes.values())),
            "dtypes": sorted({leaf.dtype for leaf in leaves.values()}),
            "shapes": shapes,
        }
        report.facts["parts"] = _parts(name.removeprefix("params/") for name in shapes)  # of any step
    try:
        run_directory.find_root(path)
    except UserError:  # a checkpoint that stands alone
        return report
    try:
        report.facts |= _family(*convert.load_architecture(path))
    except UserError as error:
        report.problems.append(str(error))
    return report


def inspect_model(path: str):
    """Returns a report on a checkpoint in another format, such as a Hugging Face folder."""
    format_ = convert.detect(path)
    report = inspection.Report(path, format_.title)
    try:
        model = format_.read(path)
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
    """Returns the parameter groups of a model: the encoder and the heads."""
    return ", ".join(dict.fromkeys(name.split("/")[0] for name in names))


def _family(config: model_config.EncoderConfig, tokenizer: tokenization.Tokenizer | None) -> dict[str, Any]:
    """Returns the family of a model, its sizes, its differences from BERT, and its vocabulary."""
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
        "unlike_bert": other,
        "vocabulary": vocabulary,
    }


def lines(report) -> Iterator[str]:
    """Yields the lines of a report; facts that are empty are not shown."""
    yield f"{report.path}: {report.kind}"
    yield from _fact_lines(report.facts, "  ")
    for example in report.examples:
        yield f"  {example}"
    yield from (f"  WRONG: {problem}" for problem in report.problems)
    if not report.problems:
        yield "  sound"


def _fact_lines(facts: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in facts.items():
        if name in ("shapes", "examples") or value in ("", [], {}, None):
            continue
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from _fact_lines(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{name}: {', '.join(map(str, value))}"
        elif isinstance(value, float):
            yield f"{indent}{name}: {value:.4g}"
        else:
            yield f"{indent}{name}: {value:,}" if type(value) is int else f"{indent}{name}: {value}"
