import jax
import jax.numpy as jnp
from absl import flags as absl_flags

from bert_jax.commands import shared
from bert_jax.settings.flags import Define
from bert_jax.training.throughput import Profiler


def take_steps(directory, steps, count=5):
    said = []
    with Profiler(str(directory), steps, said.append) as profiler:
        for step in range(1, count + 1):
            profiler.before(step)
            profiler.after(step, {"loss": jax.jit(lambda x: x + 1)(jnp.ones(8))})
    return said, list(directory.glob("plugins/profile/*/*.xplane.pb"))


def test_the_steps_that_are_asked_for_leave_a_trace(tmp_path):
    said, traces = take_steps(tmp_path, (2, 3))
    assert len(traces) == 1 and traces[0].stat().st_size > 0
    assert said == [f"wrote a trace of steps 2 to 3: xprof {tmp_path}"]


def test_a_port_for_profiles_of_a_running_process(monkeypatch):
    started, values = [], absl_flags.FlagValues()
    shared.add_run(Define(values), "pretrain", "the run")
    values(["pretrain", "--distributed=off", "--profiler_port=9012"])
    monkeypatch.setattr(jax.profiler, "start_server", started.append)
    shared.start_processes(values)
    assert started == [9012]
