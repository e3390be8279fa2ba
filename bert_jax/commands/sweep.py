r"""Run an experiment: train and evaluate its variants with several seeds, and write one table.

    bert-jax sweep --experiment=hour --workdir=runs/hour --input='wiki/*' --input_format=wikiextractor \
        --data=glue=glue --data=conll=conll2003 --budget=seconds=600

`bert-jax configs` lists the experiments that come with bert-jax, as experiments/NAME; your own is a Python
file that defines get_experiment(). WORKDIR contains the vocabulary, the records, a folder for each variant
and seed, results.json, and README.md with the table of results. Run the same command again to resume, or to
add seeds; finished runs are not repeated.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Sequence

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.errors import check_flag
from bert_jax.io import files
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import cli, convert, tokenization
    from bert_jax.parallel import compiler_options
    from bert_jax.runs import sweep


def define_flags(define: Define) -> None:
    define.string(
        "experiment",
        "Experiment: a name from `bert-jax configs`, or a Python file.",
        required="NAME, an experiment (`bert-jax configs` lists them)",
    )
    define.string(
        "workdir",
        "Directory for vocabulary, records, runs and results.",
        required="DIR, a new directory, or an experiment to resume",
    )
    define.string("input", "Text for the records, as in `bert-jax data`.")
    define.string("input_format", "Format of the text, as in `bert-jax data`.", "auto")
    define.strings("data", "NAME=DIR, the directory with the files of a fine-tuning task. Repeatable.", [])
    define.string("model", "Model that variants start from.", "")
    define.strings("variants", "Variant to run. Repeatable. Default: all.", [])
    define.integer("seeds", "Number of runs per variant. Default: the experiment's.")
    define.string(
        "budget",
        "Budget per variant: seconds=N of training, tokens=N without padding, or steps=N. Default: the "
        "experiment's.",
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    experiment = sweep.load_experiment(flags.experiment)
    given = {name: value for name in ("seeds", "budget") if (value := flags[name].value) is not None}
    experiment = dataclasses.replace(experiment, **given)
    sweep.check_known("--variants:", flags.variants, [each.name for each in experiment.variants])
    if flags.model:
        convert.load_architecture(flags.model)  # raises UserError for anything but a checkpoint
    elif experiment.needs_checkpoint:
        shared.check_given(flags, ["model"], f"--experiment={flags.experiment}")
    compiler_options.enable_compilation_cache(flags.workdir)
    records = {name: os.path.join(flags.workdir, "records", name) for name in experiment.records}
    if not all(map(files.exists, records.values())):
        shared.check_given(flags, ["input"], f"--experiment={flags.experiment}, which pre-trains,")
    data = dict(map(_named, flags.data))
    work = sweep.Sweep(experiment, flags.workdir, records, data, flags.model)
    for command in _commands_of_records(experiment, flags, records) if flags.input else ():
        print("$ " + shlex.join(["bert-jax", *command]))
        if code := cli.main(command):
            return code
    work.run(flags.variants)
    print(work.report())
    return 0


def _named(text: str) -> tuple[str, str]:
    name, _, folder = text.partition("=")
    check_flag("data", text, name and folder, "NAME=DIR, such as --data=glue=DIR")
    return name, folder


def _commands_of_records(
    experiment: sweep.Experiment, flags: absl_flags.FlagValues, records: dict[str, str]
) -> list[Sequence[str]]:
    """Returns the commands that make the vocabulary, if it does not exist yet, and the records."""
    text = (f"--input={flags.input}", f"--input_format={flags.input_format}")
    commands: list[Sequence[str]] = []
    if experiment.vocabulary is None:
        vocabulary = convert.load_architecture(flags.model)[1].path if records else ""
    else:
        kinds = [flag.removeprefix("--kind=") for flag in experiment.vocabulary if flag.startswith("--kind=")]
        vocabulary = os.path.join(flags.workdir, tokenization.KINDS[(*kinds, "wordpiece")[0]].file)
        if not files.exists(vocabulary):
            commands.append(("vocab", *text, f"--output={vocabulary}", *experiment.vocabulary))
    for name, directory in records.items():
        of_records = (f"--vocab={vocabulary}", f"--output={directory}", *experiment.records[name])
        commands.append(("data", *text, *of_records))
    return commands
