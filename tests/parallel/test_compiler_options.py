from bert_jax.parallel import sharding
from bert_jax.parallel.compiler_options import for_mesh, options

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
