"""FLOPs, bytes and traffic of a program for GPUs."""

import pytest
from support.gpu_programs import TRAIN_STEP

from bert_jax.estimate.analysis import collectives, flop_count, gpu_program, hlo, wastes

MODULE = hlo.parse(TRAIN_STEP)
PROGRAM = gpu_program.read(MODULE)

PRODUCT = 2 * 16 * 64 * 32  # FLOPs of one product by cuBLAS
SCORES = 2 * 2 * 4 * 8 * 8 * 16  # of one product of an attention
HEADS = 2 * 2 * 4 * 8 * 16  # bytes of query, key or value


def test_products_of_every_kind_count():
    flops = {name: work.flops for name, work in PROGRAM.kinds.items() if work.flops}
    assert flops == {
        gpu_program.CUBLAS: 3 * 2 * PRODUCT,
        gpu_program.CUDNN: (3 * 2 + 5) * SCORES,
        gpu_program.TRITON_ATTENTION: 4096000,  # what the kernel's name says
        gpu_program.TRITON_PRODUCTS: 2 * 16 * 64 * 8,
    }
    assert PROGRAM.flops == sum(flops.values()) == flop_count.matrix_flops(MODULE)


def test_bytes_are_those_of_operands_and_results_with_slices_as_slices():
    weights, x, out = 2 * 64 * 32, 2 * 16 * 64, 2 * 16 * 32
    moved = {name: work.bytes for name, work in PROGRAM.kinds.items()}
    assert moved == {
        # What is read and written of one layer, and the index.
        gpu_program.SLICES: 3 * (2 * weights + 4),
        # Without the 4 MiB of room that cuBLAS is given.
        gpu_program.CUBLAS: 3 * (x + weights + out) + 3 * (x + weights + 4 + out),
        gpu_program.CUDNN: 3 * (4 * HEADS + 4 * 2 * 4 * 8) + 8 * HEADS,
        gpu_program.TRITON_ATTENTION: 4 * HEADS + 4 * 2 * 8 * 4,
        gpu_program.TRITON: 2 * 4 * 16 * 64,
        gpu_program.TRITON_PRODUCTS: 4 * (16 * 64 + 64 * 8 + 16 * 8),
        gpu_program.OTHERS: 3 * 3 * 4 + 3 * (2 * 4 + 1),  # of the loop's count and condition
    }
    assert PROGRAM.bytes == sum(moved.values()) and PROGRAM.unknown_loops == 0


def test_how_often_each_kind_runs():
    assert {name: work.operations for name, work in PROGRAM.kinds.items()} == {
        gpu_program.SLICES: 3,
        gpu_program.CUBLAS: 6,
        gpu_program.CUDNN: 4,
        gpu_program.TRITON_ATTENTION: 1,
        gpu_program.TRITON: 1,
        gpu_program.TRITON_PRODUCTS: 1,
        gpu_program.OTHERS: 6,
    }


def test_the_bound_by_operation_is_the_slower_of_products_and_memory():
    def seconds(peak, bandwidth):
        return sum(cost.seconds for cost in PROGRAM.costs(peak, bandwidth))

    assert seconds(1e30, 1.0) == pytest.approx(PROGRAM.bytes)
    assert seconds(1.0, 1e30) == pytest.approx(PROGRAM.flops)
    both = seconds(1.0, 1.0)
    assert max(PROGRAM.flops, PROGRAM.bytes) < both < PROGRAM.flops + PROGRAM.bytes


def test_traffic_without_times_and_what_is_waited_for():
    positions = [(0, (number,)) for number in range(8)]
    found = collectives.find(MODULE, {"data": 2, "fsdp": 4, "tensor": 1}, None, positions)
    assert [(one.kind, one.axes, one.total_bytes, one.overlapped, one.seconds) for one in found] == [
        ("all-reduce", ("data", "fsdp"), 3 * 2 * 16 * 64, True, 0.0),
        ("all-reduce", ("fsdp",), 4 * 16 * 8, False, 0.0),
    ]


def test_slices_and_the_optimizer_are_named_as_wastes():
    mesh, gib = {"data": 8, "fsdp": 1, "tensor": 1}, 2.0**30
    given = dict(mesh_shape=mesh, optimizer_bytes=10 * gib, hbm_bytes=80 * gib)
    slices, whole = wastes.find_on_gpu(PROGRAM, **given, scanned=True)
    assert "scan_unroll=0" in slices and "--config.mesh.fsdp=8 reduces it to 1.25 GiB" in whole
    few = gpu_program.Program({gpu_program.SLICES: gpu_program.Work(1, 0.0, 1.0)} | PROGRAM.kinds, [], 0)
    few.kinds[gpu_program.SLICES] = gpu_program.Work(1, 0.0, 1.0)
    unrolled, _ = wastes.find_on_gpu(PROGRAM, **given, scanned=False)
    assert "scan_unroll" not in unrolled and unrolled.endswith("--operations=20 shows where")
    assert wastes.find_on_gpu(few, **given | dict(optimizer_bytes=gib), scanned=True) == []
