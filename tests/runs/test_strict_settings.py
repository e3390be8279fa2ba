"""Runs under the strict settings of JAX, as in a program that checks its own code with them."""

import jax
import pytest
from support import fine_tuned

from bert_jax import cli

SETTINGS = {"jax_numpy_dtype_promotion": "strict", "jax_transfer_guard": "disallow"}

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_compilation")]


@pytest.fixture
def strict():
    """For all threads: a program is traced in one of its own."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        jax.config.update(name, value)
    jax.clear_caches()
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    "more",
    [
        {"checkpoint__every": 2, "eval__every": 2, "budget__tokens": 10**6, "optimizer__warmup_steps": 0},
        {"optimizer__name": "lamb", "spikes__factor": 9.0, "optimizer__warmup_steps": 1},
        {"optimizer__name": "adafactor", "masking__strategy": "span", "optimizer__warmup_steps": 1},
    ],
    ids=["budget", "spikes", "optax"],
)
def test_pretraining(pretrain, more):
    more = {name.replace("__", "."): value for name, value in more.items()}
    assert pretrain(steps=3, **more)[::2] == (0, "")
    code, output, error = pretrain(steps=3, **more)
    assert (code, error) == (0, "") and "resumed from step 3" in output


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("adapter", ["", "lora"])
def test_finetuning(files, pretrained, tmp_path, adapter):
    more = [f"--config.adapter.kind={adapter}"] if adapter else []
    command = fine_tuned.command(files, tmp_path / "run", pretrained, *more, label="color")
    command += ["--config.max_seq_length=16", "--config.batch_size=16", "--config.epochs=2"]
    assert cli.main(command) == 0
    assert cli.main(["evaluate", f"--workdir={tmp_path}/run"]) == 0
