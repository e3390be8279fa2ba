import jax
import pytest

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


@pytest.mark.parametrize(
    "given, workdir, expected",
    [
        ("", "", "HOME/bert_jax/xla"),
        ("", "runs/base", "HOME/bert_jax/xla"),
        ("", "gs://bucket/runs/base/", "gs://bucket/runs/xla_cache"),
        ("", "s3://bucket", "s3://bucket/xla_cache"),
        ("/mine", "gs://bucket/runs/base", "/mine"),
        ("gs://mine/xla", "", "gs://mine/xla"),
    ],
)
def test_where_compiled_programs_are_kept(monkeypatch, given, workdir, expected):
    monkeypatch.setenv("XDG_CACHE_HOME", "HOME")
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", raising=False)
    names = "jax_compilation_cache_dir", "jax_persistent_cache_enable_xla_caches"
    before = [getattr(jax.config, name) for name in names]
    jax.config.update(names[0], given or None)
    try:
        enable_compilation_cache(workdir)
        directory, xla_caches = (getattr(jax.config, name) for name in names)
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)
    assert directory == expected
    assert (xla_caches == "none") == ("://" in expected)  # XLA itself cannot write to a URL
