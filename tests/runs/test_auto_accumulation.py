"""`accumulate_steps=0`: the parts that fit into a given memory, in runs of pre-training and fine-tuning."""

import json

import numpy as np
import pytest
from support import fine_tuned, processes

from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.runs import finetune, pretrain
from bert_jax.training import auto_accumulation
from bert_jax.workdir import run_directory

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROWS = 64  # of a batch, on eight devices


def config_of(arguments):
    flags, _ = cli.parse_flags(arguments[0], arguments[1:])
    return flags.config


@pytest.fixture
def needed(monkeypatch):
    """{parts: bytes} of every program that is compiled for a choice."""
    found, search = {}, auto_accumulation.search

    def noted(candidates, needed_by, *more):
        return search(candidates, lambda parts: found.setdefault(parts, needed_by(parts)), *more)

    monkeypatch.setattr(auto_accumulation, "search", noted)
    return found


@pytest.fixture
def run(tmp_path, records, capsys):
    """Pre-trains with a limit; returns what it printed."""

    def run(limit, directory=tmp_path / "run", data=records, **fields):
        fields = {"batch_size": ROWS, "accumulate_steps": 0, "steps": 2, "optimizer.warmup_steps": 1} | fields
        config = config_of(processes.command(directory, data, **fields))
        pretrain.pretrain(config, directory, memory_limit=limit)
        return capsys.readouterr().out

    return run


def recorded(directory):
    return json.loads((directory / "config.json").read_text())["config"]["accumulate_steps"]


@pytest.mark.long
def test_a_run_takes_the_fewest_parts_that_fit_and_keeps_them(run, needed, tmp_path):
    with pytest.raises(UserError, match="accumulate_steps=0: no number of microbatches fits"):
        run(1)
    assert recorded(tmp_path / "run") == 0 and not run_directory.has_started(tmp_path / "run")
    assert list(needed) == [8]  # the arguments alone are too large
    needed.clear()

    output = run(10**12)
    assert "accumulate_steps=1: 8 of 8 rows at a time on each device take " in output
    assert recorded(tmp_path / "run") == 1 and list(needed) == [1]
    whole = needed[1]
    needed.clear()

    output = run(whole - 1, tmp_path / "less")
    assert recorded(tmp_path / "less") == max(needed) > 1
    chosen = max(needed)
    assert needed[chosen] < whole and all(needed[parts] >= whole for parts in needed if parts < chosen)
    assert f"accumulate_steps={chosen}: {8 // chosen} of 8 rows at a time" in output
    needed.clear()

    output = run(10**12, tmp_path / "less", steps=2)
    assert f"accumulate_steps={chosen}, as at the start of this run" in output
    assert not needed and recorded(tmp_path / "less") == chosen
    output = run(10**12, tmp_path / "less", accumulate_steps=1)
    assert recorded(tmp_path / "less") == 1 and not needed


@pytest.mark.long
@pytest.mark.parametrize("pack", [True, False])
def test_fine_tuning(files, pretrained, tmp_path, capsys, monkeypatch, pack, needed):
    """Packed or not, the batch that decides has the largest shape of those that are trained."""
    made, largest = [], finetune.TrainingBatches.largest
    monkeypatch.setattr(finetune.TrainingBatches, "largest", lambda self: made.append(self) or largest(self))
    flags = ("--config.batch_size=32", "--config.epochs=2", "--config.max_seq_length=16")
    flags += (f"--config.pack={str(pack).lower()}", "--config.accumulate_steps=0", *fine_tuned.NO_DROPOUT)
    flags += ("--config.optimizer.warmup_steps=0",)
    arguments = fine_tuned.command(files, tmp_path / "run", pretrained, *flags, text="text", label="color")
    finetune.finetune(config_of(arguments), str(tmp_path / "run"), memory_limit=10**12)
    assert "accumulate_steps=1: " in capsys.readouterr().out and recorded(tmp_path / "run") == 1
    assert bool(made[0].packing) == pack
    shape = {name: x.shape for name, x in made[0].largest().items()}
    seen = [next(made[0](step, np.arange(32))) for step in range(2)]
    for batch in seen:
        assert batch.keys() == shape.keys()
        assert all(np.all(np.less_equal(x.shape, shape[name])) for name, x in batch.items())
    finetune.finetune(config_of(arguments), str(tmp_path / "run"), memory_limit=1)  # it keeps its number
    with pytest.raises(UserError, match=r"1 of . rows? at a time on each device"):
        finetune.finetune(config_of(arguments), str(tmp_path / "none"), memory_limit=1)
