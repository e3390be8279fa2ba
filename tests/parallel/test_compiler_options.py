import jax

from bert_jax.parallel import sharding
from bert_jax.parallel.compiler_options import enable_compilation_cache, for_mesh, options

ONE = {"data": 1, "fsdp": 1, "tensor": 1}


def test_options_of_each_chip():
    fusion = "xla_tpu_enable_async_collective_fusion_fuse_all_reduce"
    sparse_cores = "xla_tpu_enable_sparse_core_collective_offload_all_reduce"
    einsum = "xla_jf_spmd_threshold_for_windowed_einsum_mib"
    data = ONE | {"data": 256}
    # libtpu supports the fusion of all-reduces on v5e alone: elsewhere programs do not compile, or are wrong.
    for kind in ("TPU v2", "TPU v3", "TPU v4", "TPU v5", "TPU v5p", "TPU7x", "TPU of the future"):
        assert options("tpu", data, kind) == {}
    for kind, option, other in (
        ("TPU v5 lite", fusion, sparse_cores),
        ("TPU v5e", fusion, sparse_cores),
        ("TPU v6 lite", sparse_cores, fusion),
        ("TPU v6e", sparse_cores, fusion),
    ):
        chosen = options("tpu", data, kind)
        assert option in chosen and other not in chosen
        assert options("tpu", ONE, kind) == options("tpu", data, kind, recomputes=True) == {}
        assert options("tpu", ONE | {"data": 4, "tensor": 2}, kind) == {}
        assert list(options("tpu", ONE | {"fsdp": 4}, kind)) == [einsum]
    assert options("cpu", ONE | {"fsdp": 8}) == {}
    assert options("gpu", ONE) == {}
    for axis in ONE:
        assert list(options("gpu", ONE | {axis: 8})) == ["xla_gpu_enable_latency_hiding_scheduler"]
    assert for_mesh(sharding.make_mesh(fsdp=2)) == {}


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
