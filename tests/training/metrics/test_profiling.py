import jax
import jax.numpy as jnp

from bert_jax.io import files
from bert_jax.training.metrics.profiling import Profiler


def take_steps(directory, steps, count=5):
    said = []
    with Profiler(directory, steps, said.append) as profiler:
        for step in range(1, count + 1):
            profiler.before(step)
            profiler.after(step, {"loss": jax.jit(lambda x: x + 1)(jnp.ones(8))})
    return said, list(directory.glob("plugins/profile/*/*.xplane.pb"))


def test_the_steps_that_are_asked_for_leave_a_trace(tmp_path):
    said, traces = take_steps(tmp_path, (2, 3))
    assert len(traces) == 1 and traces[0].stat().st_size > 0
    assert said == [f"wrote a trace of steps 2 to 3: xprof {tmp_path}"]


def test_no_trace(tmp_path):
    assert take_steps(tmp_path, None) == ([], [])
    said, traces = take_steps(tmp_path, (6, 9))
    assert not traces and said[0].startswith("warning: --profile_steps=6:9: no trace, because step 6 is not")


def test_a_run_that_ends_within_leaves_what_there_is(tmp_path):
    said, traces = take_steps(tmp_path, (4, 9))
    assert len(traces) == 1 and len(said) == 1


def test_a_run_that_goes_back_is_traced_once(tmp_path):
    said = []
    with Profiler(tmp_path, (2, 5), said.append) as profiler:
        for step in (1, 2, 3, 1, 2, 3, 4, 5, 2):
            profiler.before(step)
            profiler.after(step, {"loss": jnp.ones(8)})
    assert said == [f"wrote a trace of steps 2 to 5: xprof {tmp_path}"]


def test_a_trace_goes_to_a_remote_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Profiler("memory://profiling/run", (1, 1), lambda line: None) as profiler:
        profiler.before(1)
        profiler.after(1, {"loss": jax.numpy.ones(3).sum()})
    assert any(name.endswith(".xplane.pb") for name in files.walk("memory://profiling/run"))
    assert list(tmp_path.iterdir()) == []
    files.remove_tree("memory://profiling/run")
