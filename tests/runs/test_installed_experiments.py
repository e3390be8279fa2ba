"""The experiments that are installed: their arms have valid configs, and run for a few steps."""

import dataclasses

import pytest
from support.pretrained import write

from bert_jax import cli
from bert_jax.runs.experiment import report, runner
from bert_jax.settings import config_files, experiments
from bert_jax.settings.experiments import Budget, Finetuning, HeldOut
from bert_jax.settings.typed import pretrain_config
from bert_jax.tasks import fields

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("name", [name for name in config_files.names() if name.startswith("experiments/")])
def test_every_arm_of_an_installed_experiment_has_a_valid_config(name, pretrained):
    experiment = config_files.load_experiment(name.partition("/")[2])
    for arm in experiment.arms:
        if arm.pretrain:
            arm_config(experiment, arm.name, pretrained).model.replace(vocab_size=8192).encoder()
        for measure in experiment.measures_of(arm):
            if isinstance(measure, Finetuning):
                config = config_files.load(measure.config, "finetune")
                values = {
                    "init_from": "model",
                    "data_dir": "data",
                    **measure.fields,
                    **arm.fields(measure.name),
                }
                for field, value in values.items():
                    fields.lookup(config, field)
                    fields.assign(config, field, value)
                fields.check(config)


def arm_config(experiment, arm, checkpoint=""):
    run = experiments.Run(1000, 0, str(checkpoint), lambda name: name)
    return pretrain_config.pretraining(experiment.arm(arm).pretrain.config(run))


def test_the_mixes_of_table_8():
    experiment = config_files.load_experiment("masks")
    found = {arm.name: arm_config(experiment, arm.name).mask_options(128) for arm in experiment.arms}
    assert len(found) == 6 and found["80-0-20"][0].replace == (0.8, 0.2, 0)  # mask, random, same
    assert found["80-10-10"][0].replace == (0.8, 0.1, 0.1) and found["0-0-100"][0].replace == (0, 1, 0)
    assert {evaluation.replace for _, evaluation in found.values()} == {(0.8, 0.1, 0.1)}


INSTALLED = {
    name: config_files.load_experiment(name.partition("/")[2])
    for name in config_files.names()
    if name.startswith("experiments/")
}
PRETRAINED = [name for name, experiment in INSTALLED.items() if experiment.budget]


def test_only_the_records_that_the_chosen_arms_need_are_made():
    hour = INSTALLED["experiments/hour"]
    assert hour.records_of(["hour"]) == ["rows", "pairs"], "with a budget of seconds, all arms are timed"
    counted = dataclasses.replace(hour, budget=Budget(steps=9))
    assert counted.records_of() == counted.records_of(["hour", "next sentence"]) == ["rows", "pairs"]
    assert counted.records_of(["hour", "random weights"]) == ["rows"]
    assert counted.records_of(["random weights"]) == []
    assert INSTALLED["experiments/sentence_order"].records_of(["sop"]) == ["next", "sop"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETRAINED)
def test_every_arm_of_an_installed_experiment_is_trained_for_a_few_steps(
    name, pretrained, vocabulary, tmp_path
):
    experiment = INSTALLED[name]
    text = tmp_path / "text.txt"
    text.write_text(
        "".join(f"the {color} cat is a big dog .\ntwo small birds .\n\n" for color in ("red", "blue") * 400)
    )
    records = {}
    for kind, flags in experiment.records.items():
        records[kind] = str(tmp_path / kind)
        command = ["data", f"--input={text}", f"--vocab={vocabulary}", f"--output={records[kind]}"]
        assert cli.main([*command, "--max_seq_length=32", *flags]) == 0
    small = dataclasses.replace(experiment, budget=Budget(steps=8), seeds=1).with_measures(
        [one for one in experiment.measures if isinstance(one, HeldOut)]
    )
    inputs = runner.Inputs(records, checkpoint=str(pretrained) if experiment.needs_checkpoint else "")
    work = runner.Runner(small, str(tmp_path / "sweep"), inputs)
    work.run()
    trained = [arm.name for arm in experiment.arms if arm.pretrain]
    assert [row["arm"] for row in work.results.rows if row["measure"] == experiments.PRETRAINING] == trained
    table = report.write(work)
    assert all(f"| {arm} |" in table for arm in trained)
    assert all(f"\n| {one.name} | " in table for one in small.comparisons)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*INSTALLED} - {*PRETRAINED}))
def test_every_arm_of_an_experiment_without_pretraining_is_fine_tuned(name, vocabulary, tmp_path):
    pairs = "".join(f"{i % 2}\t1\t2\tthe cat\t{('the dog', 'the cat')[i % 2]}\n" for i in range(8))
    words = "the x O\ncat x I-MISC\nsees x O\n\n" * 8
    for file, content in {
        "MRPC/train.tsv": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + pairs,
        "MRPC/dev.tsv": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + pairs,
        "eng.train": words,
        "eng.testa": words,
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
    checkpoint = write(tmp_path / "model", vocabulary, num_hidden_layers=6)
    (measure,) = (one for one in INSTALLED[name].measures if one.name in ("MRPC", "CoNLL-2003"))
    small = {"epochs": 1.0, "batch_size": 8, "max_seq_length": 16}
    widths = {"head_size": 8, "encoder_size": 8}  # set only in the arms that set them
    arms = []
    for arm in INSTALLED[name].arms:
        given = arm.fields(measure.name)
        narrow = {field: width for field, width in widths.items() if field in given}
        arms.append(dataclasses.replace(arm, tune={"*": {**given, **narrow, **small}}))
    experiment = dataclasses.replace(INSTALLED[name], arms=arms, seeds=1).with_measures([measure])
    inputs = runner.Inputs(data={measure.data: str(tmp_path)}, checkpoint=str(checkpoint))
    work = runner.Runner(experiment, str(tmp_path / "sweep"), inputs)
    work.run()
    assert [row["arm"] for row in work.results.rows] == [arm.name for arm in arms]
    assert all(0 <= row["scores"][measure.metrics[0]] <= 1 for row in work.results.rows)
