"""A hundred SIGKILLs of one pre-training run: it ends bit for bit like a run that nothing disturbed."""

import os
import random
import re
import signal
import time

import pytest
from support import kills, processes

from bert_jax import checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("BERT_JAX_KILLS", "100"))
STEPS = 4 * KILLS
FIELDS = {
    "steps": STEPS,
    "model.hidden_size": 16,
    "model.num_hidden_layers": 1,
    "model.intermediate_size": 32,
    "checkpoint.every": 2,
    "checkpoint.keep": 2,
    "eval.every": 0,
}
TEMPORARY = ".orbax-checkpoint-tmp"


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return processes.write_records(tmp_path_factory.mktemp("data") / "records")


def names(workdir):
    try:
        return os.listdir(workdir / "checkpoints")
    except OSError:
        return []


def newest(workdir):
    return max((int(name) for name in names(workdir) if name.isdigit()), default=0)


def is_saving(workdir):
    return any(TEMPORARY in name for name in names(workdir))


def lines(workdir, kind, fields):
    return [[line[name] for name in fields] for line in processes.metrics(workdir, kind)]


def test_killed_a_hundred_times_it_ends_bit_for_bit_the_same(server, records, tmp_path):
    rng = random.Random(14)
    undisturbed, workdir, output = tmp_path / "undisturbed", tmp_path / "run", tmp_path / "output"
    began = time.monotonic()
    assert server.run(processes.command(undisturbed, records, **FIELDS), output) == 0
    command = processes.command(workdir, records, **FIELDS)
    killed, in_a_save, resumed = 0, 0, []
    while killed < KILLS:
        before = newest(workdir)
        server.start(command, output)
        if killed % 5 < 3:
            # In a save, the next or the one after it, and at any moment of it.
            wanted = before + 2 * rng.randint(1, 2) - 1
            delay = rng.uniform(0, 0.05)
            kills.wait_until(
                lambda wanted=wanted: newest(workdir) >= wanted - 1 and is_saving(workdir), server.is_running
            )
        else:
            # At any moment: as it starts, compiles, reads a checkpoint, steps, saves or deletes.
            enough, deadline = before + 2 * rng.randint(1, 3), time.monotonic() + rng.uniform(0, 12)
            delay = rng.uniform(0, 0.1)
            kills.wait_until(
                lambda enough=enough, deadline=deadline: (
                    newest(workdir) >= enough or time.monotonic() > deadline
                ),
                server.is_running,
            )
        time.sleep(delay)
        server.kill()
        code = server.wait()
        text = output.read_text()
        assert code == -signal.SIGKILL, f"it ended by itself, after {killed} kills: {code}\n{text}"
        assert "renamed to" not in text and "Traceback" not in text, text
        killed += 1
        in_a_save += is_saving(workdir)
        found = re.search(r"resumed from step (\d+)", text)
        resumed.append(int(found[1]) if found else 0)
        assert resumed[-1] in (0, before), text
    assert server.run(command, output) == 0, output.read_text()

    assert in_a_save >= KILLS // 2 and len(set(resumed)) >= min(30, KILLS // 3), (in_a_save, resumed)
    last = workdir / "checkpoints" / str(STEPS)
    assert checkpoint.verify(last) == checkpoint.verify(undisturbed / "checkpoints" / str(STEPS))
    for kind, fields in (("train", ("step", "loss", "grad_norm")), ("eval", ("step", "mlm_loss"))):
        assert lines(workdir, kind, fields) == lines(undisturbed, kind, fields)
    assert sorted(names(workdir)) == sorted(names(undisturbed))
    print(
        f"\n{killed} SIGKILLs, {in_a_save} of them in a save, from {len(set(resumed))} different steps of "
        f"{STEPS}; {time.monotonic() - began:.0f} s"
    )
