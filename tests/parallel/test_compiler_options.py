import jax
import pytest

from bert_jax.parallel import compiler_options, sharding
from bert_jax.parallel.compiler_options import enable_compilation_cache, for_mesh, options

ONE = {"data": 1, "fsdp": 1, "tensor": 1}


def test_what_is_chosen():
    assert options("tpu", ONE) == {}
    assert "xla_tpu_enable_async_collective_fusion_fuse_all_reduce" in options("tpu", ONE | {"data": 256})
    assert options("tpu", ONE | {"data": 256}, recomputes=True) == {}
    assert options("cpu", ONE | {"fsdp": 8}) == {}
    assert options("tpu", ONE | {"data": 256}, "TPU v4") == {}
    assert options("tpu", ONE | {"data": 4, "tensor": 2}) == {}
    assert options("gpu", ONE) == {}
    assert list(options("tpu", ONE | {"fsdp": 4})) == ["xla_jf_spmd_threshold_for_windowed_einsum_mib"]
    assert options("tpu", ONE | {"tensor": 4}) == {}
    for axis in ONE:
        assert list(options("gpu", ONE | {axis: 8})) == ["xla_gpu_enable_latency_hiding_scheduler"]
    assert for_mesh(sharding.make_mesh(fsdp=2)) == {}


@pytest.mark.parametrize("option, value", options("gpu", ONE | {"data": 8}).items())
def test_this_jaxlib_knows_the_options_of_gpus(option, value):
    # jaxlib has the options of every platform but TPU, and refuses what it does not know.
    x = jax.numpy.ones(3)
    assert jax.jit(lambda x: x + 1, compiler_options={option: value})(x)[0] == 2
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such"):
        jax.jit(lambda x: x + 2, compiler_options={f"{option}_no_such": value})(x)


def test_an_option_that_the_compiler_does_not_have_is_left_out():
    device = jax.devices()[0]
    assert compiler_options._is_known("xla_gpu_enable_latency_hiding_scheduler", True, device)
    with pytest.warns(UserWarning, match="has no option xla_no_such"):
        assert not compiler_options._is_known("xla_no_such", True, device)


def test_another_error_of_the_compiler_is_no_unknown_option(monkeypatch):
    def fail(*args, **kwargs):
        raise jax.errors.JaxRuntimeError("the device is lost")

    monkeypatch.setattr(jax, "jit", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the device is lost"):
        compiler_options._is_known("xla_gpu_enable_while_loop_double_buffering", True, jax.devices()[0])


@pytest.mark.parametrize("given, stored", [(None, 0.1), ("7", 5.0)])
def test_a_time_from_which_programs_are_stored_that_the_environment_gives_is_kept(monkeypatch, given, stored):
    name, field = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "jax_persistent_cache_min_compile_time_secs"
    before = jax.config.jax_compilation_cache_dir, jax.config.values[field]
    monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(name, given)
    try:
        jax.config.update(field, 5.0)
        enable_compilation_cache("")
        assert jax.config.values[field] == stored
    finally:
        jax.config.update("jax_compilation_cache_dir", before[0])
        jax.config.update(field, before[1])


def test_the_compilation_cache_has_a_default_and_can_be_off(monkeypatch, tmp_path):
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        enable_compilation_cache()
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "bert_jax" / "xla")
        enable_compilation_cache("/given")
        enable_compilation_cache()
        assert jax.config.jax_compilation_cache_dir == "/given"
        enable_compilation_cache("")
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
