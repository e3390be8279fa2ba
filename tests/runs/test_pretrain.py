"""`bert-jax pretrain`: what it writes, and one line for everything that cannot be."""

import json
import re
import shutil

import numpy as np
import pytest
from support import google_records, processes

from bert_jax import cli
from bert_jax.data import records as packed_records
from bert_jax.errors import UserError
from bert_jax.runs.pretrain import _describe_data
from bert_jax.settings import config_fields, defaults
from bert_jax.training import loop
from bert_jax.training.optimization.optimizers import make_optimizer
from bert_jax.workdir import run_directory


@pytest.fixture(scope="module", autouse=True)
def programs():
    with processes.quick_compilation():
        yield


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return processes.write_records(tmp_path_factory.mktemp("data") / "records")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, records):
    """The work directory of a finished run on 8 devices."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    assert cli.main(processes.command(directory, records, steps=6, log_every=2)) == 0
    return directory


@pytest.fixture
def pretrain(tmp_path, records, capsys):
    """Runs the command; returns (exit code, stdout, stderr)."""

    def run(directory=tmp_path / "run", data=records, more=(), **fields):
        code = cli.main([*processes.command(directory, data, **fields), *more])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def fails(result):
    """The one line of an error."""
    code, _, error = result
    assert code == 2 and error.startswith("bert-jax: error: ") and error.count("\n") == 1, result
    return error


def test_what_is_in_the_work_directory(trained, records):
    names = {path.name for path in trained.iterdir()}
    assert names == {".lock", "checkpoints", "config.json", "metrics.jsonl", "tensorboard", "vocab.txt"}
    assert (trained / "vocab.txt").read_bytes() == (records / "vocab.txt").read_bytes()
    run = run_directory.read_run(trained)
    assert run["config"]["model"]["vocab_size"] == 100
    assert run["config"]["model"]["dtype"] == "float32"  # what "auto" became
    assert run["config"]["masking"]["max_predictions"] == 8  # of 32 tokens
    assert run["records"]["max_seq_length"] == 32
    assert run_directory.load_tokenizer(trained).encode_batch(["word3 word94"]) == [[8, 99]]


def test_the_metrics_of_a_run(trained):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 1), ("train", 2), ("train", 4), ("train", 6), ("eval", 6),
    ]  # fmt: skip
    assert {
        "loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "grad_norm", "learning_rate",
        "sequences_per_second", "tokens_per_second", "skipped",
    } <= set(lines[0])  # fmt: skip
    assert lines[0]["loss"] == pytest.approx(np.log(100) + np.log(2), abs=0.3)
    assert {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"} <= set(lines[-1])


def test_what_it_says(pretrain, trained, records):
    code, output, error = pretrain(trained, steps=6, log_every=2)
    assert (code, error) == (0, "")
    assert "64 rows of 32 tokens in" in output and "6 steps of 8 rows: 0.75 epochs" in output
    assert "evaluating on 12 of 12 held-out rows" in output
    assert "23,782 parameters; 8 x cpu (cpu); mesh data=8 fsdp=1 tensor=1" in output
    assert "resumed from step 6" in output and "warning" not in output
    last = output.splitlines()[-1]
    assert last.startswith(
        f"saved in {trained}/checkpoints/6; try: bert-jax fill-mask --checkpoint={trained} "
    )


def test_no_config_and_no_workdir(capsys):
    assert cli.main(["pretrain", "--workdir=x"]) == 2
    assert "pretrain needs --config=" in capsys.readouterr().err
    assert cli.main(["pretrain", f"--config={processes.CONFIG}"]) == 2
    assert "pretrain needs --workdir=DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"data.dir": ""}, "no records given: set --config.data.dir"),
        ({"data.dir": "/missing"}, "there is no record directory '/missing'"),
        ({"data.train_split": "dev"}, "have no split 'dev', only 'train', 'eval'"),
        ({"model.max_position_embeddings": 16}, "rows of 32 tokens and the model has 16 positions"),
        ({"model.vocab_size": 50}, "model.vocab_size=50 is less than the 100 of the records' vocabulary"),
        ({"model.num_attention_heads": 3}, "hidden_size=32 must be a multiple of num_attention_heads=3"),
        ({"masking.strategy": "words"}, "masking.strategy='words' is unknown"),
        ({"optimizer.name": "adamx"}, "optimizer.name='adamx' is unknown"),
        ({"batch_size": 12}, "batch_size=12 must be a multiple of"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"log_every": 0}, "log_every=0 must be at least 1"),
        ({"mesh.fsdp": 3}, "mesh data=-1 fsdp=3 tensor=1 does not fit 8 devices"),
        ({"checkpoint.keep": 0}, "checkpoint.keep=0 must be at least 1"),
        ({"init_from": "/missing"}, "/missing: no such directory"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(pretrain, fields, told):
    assert told in fails(pretrain(**fields))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("seed", -1, "seed=-1 must be at least 0"),
        ("seed", 2**40, f"seed={2**40} must be at most 4,294,967,295"),
        ("batch_size", 10**20, f"batch_size={10**20} must be at most"),
        ("steps", 2**31, f"steps={2**31} must be at most"),
        ("masking.prob", "nan", "masking.prob=nan must be a finite number"),
        ("optimizer.learning_rate", "nan", "optimizer.learning_rate=nan must be a finite number"),
        ("optimizer.learning_rate", "1e400", "optimizer.learning_rate=inf must be a finite number"),
        ("optimizer.learning_rate", -1, "optimizer.learning_rate=-1.0 must be at least 0"),
        ("optimizer.weight_decay", "nan", "optimizer.weight_decay=nan must be a finite number"),
        ("optimizer.clip_norm", "nan", "optimizer.clip_norm=nan must be a finite number"),
        ("model.layer_norm_eps", "nan", "model.layer_norm_eps=nan must be a finite number"),
        ("model.layer_norm_eps", -1, "model.layer_norm_eps=-1.0 must be at least 1e-37"),
        ("model.initializer_range", "nan", "model.initializer_range=nan must be a finite number"),
        ("optimizer.warmup_steps", -5, "optimizer.warmup_steps=-5 must be at least 0"),
        ("eval.batches", -1, "eval.batches=-1 must be at least 0"),
        ("checkpoint.every", -3, "checkpoint.every=-3 must be at least 0"),
        ("init_ignore", "(", "init_ignore='(' must be a regular expression"),
        ("optimizer.b2", 1, "optimizer.b2=1.0 must be less than 1"),
        ("optimizer.eps", 0, "optimizer.eps=0.0 must be at least 1e-37"),
        ("steps", "abc", "steps"),
        ("steps", "1.5", "steps"),
        ("optimizer.learning_rate", "fast", "learning_rate"),
    ],
)
def test_a_senseless_value_is_refused_by_name_before_anything_is_read(
    pretrain, monkeypatch, field, value, told
):
    monkeypatch.setattr(loop, "fit", lambda **unused: pytest.fail("it would have compiled"))
    assert told in fails(pretrain(data="/not/even/opened", **{field: value}))


def test_a_vocabulary_that_is_not_the_records_own(pretrain, records, tmp_path):
    data = shutil.copytree(records, tmp_path / "records")
    processes.write_vocabulary(data / "vocab.txt", words=96)
    assert "vocab.txt is not the vocabulary that the records beside it" in fails(pretrain(data=data))


def test_a_work_directory_of_another_model(pretrain, trained):
    error = fails(pretrain(trained, steps=6, **{"model.num_hidden_layers": 3}))
    assert "belongs to another run: model.num_hidden_layers is 2 there and 3 here" in error


def test_a_work_directory_of_other_records(pretrain, trained, tmp_path):
    data = processes.write_records(tmp_path / "records", words=96)
    error = fails(pretrain(trained, data, steps=6))
    assert "the digest of the vocabulary is" in error and "the digest of the records" in error


def test_allowed_changes_go_on_with_the_new_values(pretrain, trained, tmp_path):
    directory, changed = shutil.copytree(trained, tmp_path / "copy"), {"steps": 6, "data.train_split": "eval"}
    assert "data.train_split is 'train' there and 'eval' here" in fails(pretrain(directory, **changed))
    code, output, _ = pretrain(directory, more=["--allow_changes"], **changed)
    assert code == 0 and "resumed from step 6" in output
    assert run_directory.load_config(directory).data.train_split == "eval"


def test_allowed_changes_do_not_reach_the_shapes(pretrain, trained):
    error = fails(pretrain(trained, more=["--allow_changes"], steps=6, **{"model.intermediate_size": 128}))
    assert "is of another model: model.intermediate_size is 64 there and 128 here" in error


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"model.num_attention_heads": 4}, "is of another model: model.num_attention_heads is 2 there and 4"),
        ({"optimizer.name": "lamb"}, "is of another model or optimizer"),
    ],
)
def test_a_change_that_the_checkpoint_does_not_fit_leaves_the_config(pretrain, trained, changes, told):
    before = (trained / "config.json").read_bytes()
    assert told in fails(pretrain(trained, more=["--allow_changes"], steps=6, **changes))
    assert (trained / "config.json").read_bytes() == before


def test_allowed_changes_do_not_reach_the_vocabulary(pretrain, trained, tmp_path):
    data = processes.write_records(tmp_path / "records", words=96)
    before = {name: (trained / name).read_bytes() for name in ("config.json", "vocab.txt")}
    error = fails(pretrain(trained, data, more=["--allow_changes"], steps=6))
    assert "is of another model: " in error and "the digest of the vocabulary is" in error
    assert before == {name: (trained / name).read_bytes() for name in before}


def test_moved_records_are_the_same(pretrain, trained, records, tmp_path):
    data = shutil.copytree(records, tmp_path / "elsewhere")
    code, output, _ = pretrain(trained, data, steps=6)
    assert code == 0 and "nothing to train" in output


def test_a_config_file_without_a_field(pretrain, tmp_path, records, capsys):
    config = tmp_path / "config.py"
    config.write_text(
        "from bert_jax.settings import defaults\n\n\ndef get_config():\n    c = defaults.pretrain('tiny')\n"
        "    del c['masking']\n    c.extra = 1\n    return c\n"
    )
    assert cli.main(["pretrain", f"--config={config}", f"--workdir={tmp_path / 'run'}"]) == 2
    assert "the config has no masking.max_predictions, masking.prob, masking.str" in capsys.readouterr().err


@pytest.mark.parametrize(
    "continued, steps, warns",
    [(True, 160, False), (True, 168, True), (False, 400, False), (False, 408, True)],
)
def test_many_epochs_of_little_data_are_told(records, continued, steps, warns):
    config = defaults.pretrain("tiny")
    config.update(steps=steps, batch_size=8, init_from="model" if continued else "")
    config.data.dir = str(records)
    said = []
    _describe_data(config, packed_records.open_dataset(str(records), "train"), None, said.append)
    assert [line for line in said if "warning" in line] == warns * [
        f"warning: {steps / 8:.3g} epochs: the model will see every row {steps // 8} times; 3 epochs are 24 "
        "steps: --config.steps=24 --config.optimizer.warmup_steps=2"
    ]


def test_init_from_starts_with_its_weights(pretrain, trained, tmp_path):
    code, output, _ = pretrain(init_from=trained, steps=6)
    assert code == 0 and f"started from the weights of {trained}" in output
    assert re.search(f"loaded ([0-9]+) of \\1 parameters from {trained}/checkpoints/6\n", output)
    losses = [
        json.loads((path / "metrics.jsonl").read_text().splitlines()[0])["loss"]
        for path in (trained, tmp_path / "run")
    ]
    assert losses[1] < losses[0]  # of the first step


@pytest.mark.parametrize("field", ["init_from", "resume_from"])
def test_another_vocabulary_than_that_of_the_weights(pretrain, trained, tmp_path, field):
    data = processes.write_records(tmp_path / "records", words=96)
    error = fails(pretrain(data=data, **{field: trained}))
    assert f"{field}={trained} was trained with another vocabulary" in error


def test_going_on_from_another_run(pretrain, trained, tmp_path):
    code, output, _ = pretrain(steps=6, resume_from=trained)
    assert code == 0 and f"went on from {trained}/checkpoints/6, step 6" in output


def test_records_without_an_evaluation_split(pretrain, records, tmp_path):
    code, output, _ = pretrain(steps=6, **{"data.eval_split": ""})
    assert code == 0 and "no evaluation: the records have no split for it" in output


@pytest.fixture
def masked_records(tmp_path):
    """A directory of records of another tool, with the newer names, and their vocabulary."""
    rng = np.random.default_rng(0)
    made = [
        google_records.example(
            first=rng.integers(5, 100, 3).tolist(),
            masks=((1, int(rng.integers(5, 100))),),
            label=i % 2,
            newer=True,
        )
        for i in range(16)
    ]
    google_records.write(tmp_path / "others" / "tf_examples.tfrecord-00000-of-00001", made)
    return tmp_path / "others", google_records.write_vocabulary(tmp_path / "others.txt", 100)


def test_records_of_others_with_masks(pretrain, masked_records, tmp_path):
    data, vocab = masked_records
    fields = {"data.vocab": vocab, "steps": 6, "masking.strategy": "whole_word"}
    code, output, error = pretrain(data=data, **fields)
    assert (code, error) == (0, "")
    line = "the records come with their masks, at most 3 a row: masking.prob and"
    assert output.count(line) == 1 and "no evaluation: the records have no split for it" in output
    run = run_directory.read_run(tmp_path / "run")
    assert run["config"]["masking"]["max_predictions"] == 3 and run["records"]["max_seq_length"] == 12
    assert (tmp_path / "run" / "vocab.txt").exists()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["loss"] == pytest.approx(np.log(100) + np.log(2), abs=0.3)
    code, output, _ = pretrain(data=data, **fields)
    assert code == 0 and "nothing to train" in output


def test_records_of_others_and_what_cannot_be(pretrain, masked_records, records, tmp_path):
    data, vocab = masked_records
    assert "name their vocabulary in data.vocab" in fails(pretrain(data=data))
    small = google_records.write_vocabulary(tmp_path / "small.txt", 60)
    error = fails(pretrain(data=data, **{"data.vocab": small}))
    assert "is outside the vocabulary of 60; give the vocabulary that the records were made with" in error
    assert "carries its own vocabulary: leave data.vocab empty" in fails(pretrain(**{"data.vocab": vocab}))
    error = fails(pretrain(data=f"{data},{records}", **{"data.vocab": vocab}))
    assert "holds packed records and" in error and "one run reads one schema" in error


@pytest.mark.parametrize(
    "name, size",
    [
        *((size, size) for size in ("tiny", "mini", "small", "base", "large")),
        ("base_v5e", "base"),
        ("base_gpu", "base"),
        ("continued", "base"),
    ],
)
def test_the_config_files(name, size):
    """Each has the fields of a run, and stands for its size."""
    from bert_jax.models.config import SIZES

    path = processes.CONFIG.with_name(f"{name}.py")
    space = {"__name__": name}
    exec(compile(path.read_text(), path, "exec"), space)
    config = space["get_config"]()
    config_fields.check_pretraining(config)
    assert {name: config.model[name] for name in SIZES[size]} == SIZES[size]
    assert config.optimizer.warmup_steps < config.steps


def load_config(name, argument):
    path = processes.CONFIG.with_name(f"{name}.py")
    space = {"__name__": name}
    exec(compile(path.read_text(), path, "exec"), space)
    return space["get_config"](argument)


@pytest.mark.parametrize("size", ["base", "large"])
def test_two_phases_have_the_schedule_of_one_run(size):
    whole, first, second = (load_config(size, phase) for phase in ("", "phase1", "phase2"))
    assert (first.steps, second.steps) == (900_000, 1_000_000) and second == whole
    one, two, three = (make_optimizer(c.optimizer, c.steps, None)[1] for c in (whole, first, second))
    for step in (0, 5_000, 10_000, 899_999):
        assert one(step) == two(step) == three(step)
    assert two(899_999) > 0.09 * 1e-4
    with pytest.raises(UserError, match="expected phase1, of 128 tokens"):
        load_config(size, "phase3")


@pytest.mark.parametrize("phase, rows, sequences", [("phase1", 65_536, 461e6), ("phase2", 32_768, 51e6)])
def test_large_batches_with_lamb(phase, rows, sequences):
    config = load_config("large_lamb", phase)
    assert config.batch_size == rows and config.batch_size * config.steps == pytest.approx(
        sequences, rel=0.01
    )
    make_optimizer(config.optimizer, config.steps, None)
    with pytest.raises(UserError, match="expected pretrain/large_lamb:phase1"):
        load_config("large_lamb", "")


def test_help_needs_no_jax(capsys):
    assert cli.main(["pretrain", "--help"]) == 0
    output = capsys.readouterr().out
    assert "--workdir" in output and "--[no]allow_changes" in output


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, trained):
    """The weights of `trained` without its heads, as an encoder of sentences has them."""
    from bert_jax import convert
    from bert_jax.convert.formats import work_directory

    model = convert.load(trained)
    params = {name: x for name, x in model.params.items() if name.split("/")[0] not in ("mlm", "nsp")}
    directory = tmp_path_factory.mktemp("encoder") / "model"
    work_directory.FORMAT.write(model.replace(params=params, head="none"), directory)
    return directory


def continued(records, directory, *more):
    """Continued pre-training whose config is of another size."""
    return [
        "pretrain",
        "--config=pretrain/tiny",
        f"--workdir={directory}",
        f"--config.data.dir={records}",
        "--config.batch_size=8",
        "--config.steps=2",
        "--config.optimizer.warmup_steps=1",
        *more,
    ]


def test_the_architecture_is_that_of_the_weights(records, encoder, tmp_path, capsys):
    """Through every mistake on the way, in one directory: each line names the whole remedy."""
    command = continued(records, tmp_path / "run", f"--config.init_from={encoder}")
    heads = "--config.model.num_attention_heads=4"
    assert cli.main([*command, heads]) == 2
    error = capsys.readouterr().err
    assert f"num_attention_heads is 2 there and 4 here; leave out {heads.partition('=')[0]}" in error
    for given in ((), ("--config.init_ignore=mlm/.*",)):
        assert cli.main([*command, *given]) == 2
        error = capsys.readouterr().err
        assert "and, if" not in error and " more" not in error and "nsp/kernel" in error
        assert "--config.init_ignore='mlm/.*|nsp/.*'" in error and error.count("\n") == 1
    # A run that made no step has no claim on its directory.
    assert (
        cli.main([*command, "--config.init_ignore=mlm/.*|nsp/.*", "--config.model.layer_norm_eps=1e-6"]) == 0
    )
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if line.startswith(f"architecture of {encoder}: "))
    assert {"num_hidden_layers 2", "hidden_size 32", "num_attention_heads 2"} <= set(
        re.split(r"[:,;] ", line)
    )
    assert "the config has hidden_size 128" in said and "started from the weights of " in said
    model = run_directory.load_config(tmp_path / "run").model
    assert (model.hidden_size, model.intermediate_size, model.max_position_embeddings) == (32, 64, 32)
    assert model.layer_norm_eps == 1e-6


def test_bench_and_estimate_see_the_model_that_will_be_trained(trained, capsys, monkeypatch):
    from bert_jax.commands import bench
    from bert_jax.estimate import program
    from bert_jax.estimate.chips import tpu_topology

    argv = ["--config=pretrain/tiny", f"--config.init_from={trained}", "--config.model.causal=true"]
    flags, _ = cli.parse_flags(bench, "bench", argv)
    model = bench._resolve(flags).model
    assert (model.hidden_size, model.causal) == (32, True)

    def seen(config, length):
        raise UserError(f"a size of {config.model.hidden_size}")

    monkeypatch.setattr(tpu_topology, "prepare", lambda: None)
    monkeypatch.setattr(program, "synthetic_rows", seen)
    assert cli.main(["estimate", "--topology=v5e:1x1", *argv]) == 2
    error = capsys.readouterr().err
    assert f"architecture of {trained}: " in error and "a size of 32" in error


def test_a_run_that_started_needs_the_weights_no_more(records, trained, tmp_path, capsys):
    weights = shutil.copytree(trained, tmp_path / "weights")
    command = continued(records, tmp_path / "run", f"--config.init_from={weights}")
    assert cli.main(command) == 0
    shutil.rmtree(weights)
    capsys.readouterr()
    assert cli.main([*command, "--config.checkpoint.every=1"]) == 0
    assert "resumed from step 2" in capsys.readouterr().out
    assert cli.main([*command, "--config.model.hidden_size=64"]) == 2
    assert "model.hidden_size is 32 there and 64 here" in capsys.readouterr().err


def test_records_longer_than_the_weights_have_positions(records, trained, tmp_path, capsys):
    data = shutil.copytree(records, tmp_path / "records")
    manifest = json.loads((data / "manifest.json").read_text())
    (data / "manifest.json").write_text(json.dumps(manifest | {"max_seq_length": 64}))
    assert cli.main(continued(data, tmp_path / "run", f"--config.init_from={trained}")) == 2
    error = capsys.readouterr().err
    assert "rows of 64 tokens and the model has 32 positions" in error
    assert "max_position_embeddings=" not in error
