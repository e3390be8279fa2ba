r"""Run an experiment: train its arms with several seeds, evaluate them alike, and write one table.

    bert-jax sweep --experiment=hour --workdir=runs/hour --input='wiki/*' --input_format=wikiextractor \
        --data=glue=glue --data=conll=conll2003 --seconds=600

`bert-jax configs` lists the experiments that are installed, as experiments/NAME; an experiment may also be a
Python file that defines get_experiment(). WORKDIR holds the vocabulary, the records, a folder for each arm
and seed, results.json, README.md with the table, and plots. Run the same command again to go on after an
interruption, or to add seeds: nothing that has a result is done again. One sweep at a time uses a WORKDIR;
--table may be asked for meanwhile.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import cli, convert, tokenization
    from bert_jax.parallel import compiler_options
    from bert_jax.runs import sweep


def define_flags(define: Define) -> None:
    """Defines the flags."""
    define.string(
        "experiment",
        "The experiment: the name of an installed one, or a Python file.",
        required="NAME, an experiment (`bert-jax configs` lists them)",
    )
    define.string(
        "workdir", "Directory for everything.", required="DIR, a new directory or that of an experiment"
    )
    define.string(
        "input", "Text that records are made of: files, patterns or folders, as in `bert-jax data`."
    )
    define.string("input_format", "Format of the text, as in `bert-jax data`.", "auto")
    define.strings("data", "NAME=DIR: the folder with the files of a fine-tuning. May be repeated.", [])
    define.string("model", "The model that arms start from, if they do.", "")
    define.strings("arms", "Run only this arm. May be repeated.", [])
    define.strings("measures", "Judge only by this measure. May be repeated.", [])
    define.integer("seeds", "Number of runs of each arm. Default: the experiment's.")
    define.number(
        "seconds", "Seconds of train steps that each arm may spend, in place of the experiment's budget."
    )
    define.integer("tokens", "Tokens that each arm may train on, in place of the experiment's budget.")
    define.integer("steps", "Steps of each arm, in place of the experiment's budget.")
    define.integer(
        "train_rows", "Fine-tune on the first rows only, at most this many. Default: the experiment's."
    )
    define.boolean("table", "Only write the table and the plots of what has run.")


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    experiment = _resolve(sweep.load_experiment(flags.experiment), flags)
    if flags.model:
        convert.load_architecture(flags.model)  # raises UserError for anything but a checkpoint
    compiler_options.enable_compilation_cache()
    records = {name: os.path.join(flags.workdir, "records", name) for name in experiment.records}
    inputs = sweep.Inputs(records, dict(map(_named, flags.data)), flags.model)
    if flags.table:
        print(sweep.write_report(sweep.Sweep(experiment, flags.workdir, inputs, runs=False)))
        return 0
    needed = [records[name] for name in experiment.records_of(flags.arms)]
    if not (flags.input or all(map(files.exists, needed))):
        raise UserError("the experiment pre-trains; give --input=FILES, text to make its records of")
    work = sweep.Sweep(experiment, flags.workdir, inputs)
    with work.held():
        if code := _make_records(experiment, flags, records):
            return code
        try:
            work.run(flags.arms)
        except BaseException:
            sweep.write_report(work)
            raise
        print(sweep.write_report(work))
    return 0


def _resolve(experiment: sweep.Experiment, flags: absl_flags.FlagValues) -> sweep.Experiment:
    """Returns the experiment with what the flags change."""
    if flags.seeds is not None and flags.seeds < 1:
        raise UserError(f"--seeds={flags.seeds}: expected 1 or more")
    if flags.train_rows is not None and flags.train_rows < 1:
        raise UserError(f"--train_rows={flags.train_rows}: expected 1 or more")
    given: dict[str, Any] = {
        name: flags[name].value for name in ("seconds", "tokens", "steps") if flags[name].value is not None
    }
    if given and experiment.budget is None:
        raise UserError(
            f"--{next(iter(given))}: the experiment {flags.experiment} does not pre-train; leave it out"
        )
    budget = sweep.Budget(**given) if given else experiment.budget
    for arm in flags.arms:
        sweep.check_known("--arms:", [arm], [one.name for one in experiment.arms])
    measures = experiment.measures
    for name in flags.measures:
        sweep.check_known("--measures:", [name], [one.name for one in measures])
    if flags.measures:
        measures = [one for one in measures if one.name in flags.measures]
    return dataclasses.replace(
        experiment,
        budget=budget,
        seeds=flags.seeds or experiment.seeds,
        train_rows=flags.train_rows or experiment.train_rows,
    ).with_measures(measures)


def _named(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise UserError(f"--data={text}: expected NAME=DIR, such as glue=/data/glue")
    return name, folder


def _make_records(experiment: sweep.Experiment, flags: absl_flags.FlagValues, records: dict[str, str]) -> int:
    """Makes the vocabulary and the records that do not exist yet, and returns the exit code."""
    if not flags.input:
        return 0
    text = (f"--input={flags.input}", f"--input_format={flags.input_format}")
    kinds = [flag.partition("=")[2] for flag in experiment.vocabulary or () if flag.startswith("--kind=")]
    vocabulary = os.path.join(flags.workdir, tokenization.KINDS[kinds[0] if kinds else "wordpiece"].file)
    if experiment.vocabulary is None and records:
        vocabulary = convert.load_architecture(flags.model)[1].path
    elif not files.exists(vocabulary):
        code = _command("vocab", *text, f"--output={vocabulary}", *(experiment.vocabulary or ()))
        if code:
            return code
    for name in experiment.records_of(flags.arms):
        directory = records[name]
        own = (f"--vocab={vocabulary}", f"--output={directory}", *experiment.records[name])
        if code := _command("data", *text, *own):
            return code
    return 0


def _command(*arguments: str) -> int:
    print("$ " + shlex.join(["bert-jax", *arguments]))
    return cli.main(arguments)
