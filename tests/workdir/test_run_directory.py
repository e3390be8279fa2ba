"""Work directories: which run they belong to, their vocabulary, and paths into them."""

import functools
import json
from pathlib import Path

import pytest
from support import together

from bert_jax.errors import UserError
from bert_jax.kernels.dispatch import Target
from bert_jax.settings import config_fields, defaults
from bert_jax.settings.pretrain_config import PretrainConfig
from bert_jax.workdir import run_directory
from bert_jax.workdir.run_directory import WorkDir

FIELDS = dict(config_fields.fields(PretrainConfig()))


def make_run(**changes):
    """A pre-training run with dotted changes."""
    run = {
        "command": "pretrain",
        "config": defaults.pretrain("tiny").to_dict(),
        "records": {"fingerprint": "f"},
        "vocabulary": {"kind": "wordpiece", "file": "vocab.txt", "digest": "d", "lower_case": False},
    }
    for name, value in changes.items():
        *parents, last = name.split("__")
        node = run
        for parent in parents:
            node = node[parent]
        assert last in node, name
        node[last] = value
    return run


@pytest.fixture
def opened(tmp_path):
    with WorkDir(tmp_path / "run") as held:
        held.open_run(make_run(), FIELDS)
        Path(held.checkpoints, "5").mkdir(parents=True)
        yield held


def test_the_config_is_written_and_read(opened):
    assert run_directory.read_run(opened.path) == make_run()
    assert run_directory.read_run(opened.path)["config"]["model"]["hidden_size"] == 128
    opened.open_run(make_run(), FIELDS)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("config__model__num_hidden_layers", 3, "model.num_hidden_layers is 2 there and 3 here"),
        ("config__optimizer__learning_rate", 0.5, "optimizer.learning_rate is 0.0001 there and 0.5 here"),
        ("config__seed", 1, "seed is 0 there and 1 here"),
        ("records__fingerprint", "g", "records.fingerprint is 'f' there and 'g' here"),
        ("vocabulary__digest", "e", "vocabulary.digest is 'd' there and 'e' here"),
        ("command", "finetune", "command is 'pretrain' there and 'finetune' here"),
    ],
)
def test_another_run_is_refused_by_what_differs(opened, name, value, told):
    with pytest.raises(UserError, match="belongs to another run: ") as error:
        opened.open_run(make_run(**{name: value}), FIELDS)
    assert told in str(error.value)
    assert run_directory.read_run(opened.path) == make_run()


def test_a_run_of_an_earlier_version_had_the_default_of_a_field_that_it_lacks(opened):
    earlier = make_run()
    del earlier["config"]["optimizer"]["no_decay"]
    Path(opened.path, "config.json").write_text(json.dumps(earlier))
    opened.open_run(make_run(), FIELDS)
    with pytest.raises(
        UserError, match=r"optimizer.no_decay is '\(\.\*/\)\?\(bias\|scale\)' there and '' here"
    ):
        opened.open_run(make_run(config__optimizer__no_decay=""), FIELDS)


@pytest.mark.parametrize(
    ("value", "resumes"), [({"kind": "old"}, True), ({"kind": "x"}, False), ({"unknown": 1}, False)]
)
def test_a_run_with_a_field_that_no_longer_exists_resumes_if_it_had_the_default(
    opened, monkeypatch, value, resumes
):
    monkeypatch.setitem(run_directory.REMOVED, "masking.kind", "old")
    recorded = make_run()
    recorded["config"]["masking"] |= value
    Path(opened.path, "config.json").write_text(json.dumps(recorded))
    if resumes:
        opened.open_run(make_run(), FIELDS)
    else:
        with pytest.raises(UserError, match=rf"config.masking.{next(iter(value))}="):
            opened.open_run(make_run(), FIELDS)


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/10"])
def test_the_work_directory_of_a_checkpoint(opened, inside):
    (Path(opened.path) / "checkpoints" / "10").mkdir(parents=True)
    assert run_directory.find_root(Path(opened.path) / inside) == opened.path
    (Path(opened.path) / "best").mkdir()
    expected = Path(opened.path) / (inside or "best")
    assert Path(run_directory.best_or_newest(Path(opened.path) / inside)) == expected
    with pytest.raises(UserError, match="no such directory"):
        run_directory.find_root(Path(opened.path) / "checkpoints" / "99")


@pytest.mark.parametrize("suffix", [".txt", ".model"])
def test_a_run_that_made_no_step_leaves_no_claim(tmp_path, suffix):
    """Neither its config nor its vocabulary nor its report nor the best checkpoint of steps that are lost."""
    (tmp_path / "v.txt").write_text("words")
    (tmp_path / f"w{suffix}").write_text("others")
    with WorkDir(tmp_path / "run") as held:
        held.open_run(make_run(), FIELDS)
        held.copy_vocabulary(tmp_path / "v.txt")
        left = [run_directory.REPORT_FILE, run_directory.BEST_FILE]
        for name in left:
            held.write_json(name, {})
        (Path(held.path) / run_directory.BEST / "8").mkdir(parents=True)
        Path(held.checkpoints).mkdir()
    changed = make_run(config__seed=1, config__model__hidden_size=64)
    with WorkDir(tmp_path / "run") as held:
        held.open_run(changed, FIELDS)
        held.copy_vocabulary(tmp_path / f"w{suffix}")
        assert Path(run_directory.find_vocabulary(held.path)).read_text() == "others"
        assert not any((Path(held.path) / name).exists() for name in (*left, run_directory.BEST))
    assert run_directory.read_run(tmp_path / "run") == changed


@pytest.mark.parametrize("left", ["checkpoints/10", "checkpoints/bad-10", "metrics.jsonl"])
def test_a_run_that_made_a_step_has_a_claim(tmp_path, left):
    with WorkDir(tmp_path / "run") as held:
        held.open_run(make_run(), FIELDS)
        assert not run_directory.has_started(held.path)
        (Path(held.path) / left).parent.mkdir(exist_ok=True)
        (Path(held.path) / left).write_text("{}\n")
        assert run_directory.has_started(held.path)
        with pytest.raises(UserError, match="belongs to another run"):
            held.open_run(make_run(config__seed=1), FIELDS)


CPU, TPU = Target("cpu"), Target("tpu")
NEW_CPU = Target("cpu", "bfloat16")


@pytest.mark.parametrize(
    "recorded, requested, target, dtype, line",
    [
        (None, "auto", CPU, "float32", None),
        (None, "auto", TPU, "bfloat16", None),
        (None, "auto", NEW_CPU, "bfloat16", None),
        ("float32", "auto", NEW_CPU, "float32", "model.dtype=float32, as at the start of this run"),
        ("float32", "auto", TPU, "float32", "model.dtype=float32, as at the start of this run"),
        ("bfloat16", "auto", CPU, "bfloat16", "a new run here would use float32"),
        ("bfloat16", "float32", TPU, "float32", None),  # open_run refuses it then
    ],
)
def test_a_run_keeps_the_dtype_that_it_was_started_with(tmp_path, recorded, requested, target, dtype, line):
    if recorded:
        with WorkDir(tmp_path) as held:
            held.open_run(make_run(config__model__dtype=recorded), FIELDS)
            (Path(held.path) / "metrics.jsonl").write_text("{}\n")
    lines = []
    assert run_directory.resolve_dtype(requested, tmp_path, target, lines.append) == dtype
    assert len(lines) == (line is not None) and (line or "") in "".join(lines)


@pytest.fixture
def open_together(monkeypatch, tmp_path):
    """Returns a function that opens a run in each of several processes, and returns their errors as text."""

    def open_in(run):
        with WorkDir(tmp_path / "run") as held:
            held.open_run(run, FIELDS)

    def open_all(*runs):
        calls = [functools.partial(open_in, run) for run in runs]
        return [str(error or "") for error in together.run(monkeypatch, *calls)]

    return open_all


def test_processes_with_different_settings_or_records_are_refused_in_all_of_them(open_together, tmp_path):
    other = make_run(config__seed=7, records__fingerprint="other")
    errors = open_together(make_run(), make_run(), other)
    assert errors[0] == errors[1] == errors[2]
    seed = make_run()["config"]["seed"]
    assert f"seed is {seed} in process 0 and 7 in process 2" in errors[0]
    assert "records.fingerprint is 'f' in process 0 and 'other' in process 2" in errors[0]
    assert not (tmp_path / "run" / "config.json").exists()
