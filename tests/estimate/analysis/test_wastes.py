"""Each waste is told with its setting, and a program without any gets no line."""

import pytest
from support.programs import TRAIN_STEP

from bert_jax.estimate.analysis import hlo, wastes
from bert_jax.estimate.analysis.collectives import Collective
from bert_jax.estimate.analysis.timing import Compute
from bert_jax.estimate.chips.tpus import CHIPS

EMPTY = "ENTRY %main (x: f32[2]) -> f32[2] {\n  ROOT %x = f32[2] parameter(0)\n}\n"
SCORES = EMPTY.replace("ROOT %x", "%x").replace(
    "}\n", "  ROOT %s = f32[12,16,4,128,128]{4,3,2,1,0:T(8,128)} broadcast(%x)\n}\n"
)
GIB = 2.0**30


def compute(**changes):
    fields = dict(
        estimated_seconds=1.0, kernel_seconds=0.0, kernels=0, added_seconds=0.0, added={},
        moving_seconds=0.05, unknown_loops=0, matrix_flops=1e12, hbm_bytes=1e9, recomputed=0,
    )  # fmt: skip
    return Compute(**fields | changes)


def collective(**changes):
    fields = dict(
        kind="all-reduce", axes=("data",), group=16, payload=GIB, times=1, overlapped=False, seconds=0.01,
        op_name="",
    )  # fmt: skip
    return Collective(**fields | changes)


def find(text=EMPTY, compute_=None, collectives=(), mesh=(16, 1, 1), optimizer_bytes=0.1 * GIB, scanned=True):
    """Of a model with a GiB of parameters."""
    return wastes.find(
        hlo.parse(text),
        compute_ or compute(),
        collectives,
        chip=CHIPS["v5e"],
        mesh_shape=dict(zip(("data", "fsdp", "tensor"), mesh, strict=True)),
        parameter_bytes=GIB,
        optimizer_bytes=optimizer_bytes,
        length=128,
        heads=4,
        scanned=scanned,
    )


def test_nothing_wasted():
    assert find(collectives=[collective()]) == []


@pytest.mark.parametrize(
    "given, words",
    [
        (dict(text=SCORES), "float32 scores [12, 16, 4, 128, 128] (0.05 GiB)"),
        (dict(collectives=[collective(seconds=0.5)]), "33% of the step"),
        (
            dict(collectives=[collective(), collective(payload=GIB / 8)]),
            "1.12 GiB per step are all-reduced over data",
        ),
        (
            dict(
                mesh=(2, 8, 1),
                collectives=[
                    collective(kind="all-gather", axes=("fsdp",), times=24, payload=GIB / 24, seconds=1e-3)
                ],
            ),
            "1.00 GiB per step in 24 all-gathers",
        ),
        (dict(mesh=(2, 8, 1), collectives=[collective(axes=("data", "fsdp"))]), "a reduce-scatter would"),
        (
            dict(compute_=compute(moving_seconds=0.25)),
            "25% of the computation only copies, transposes, pads and slices; --config.model.scan_unroll=0",
        ),
        (dict(compute_=compute(moving_seconds=0.25), scanned=False), "and slices; --operations=20 shows"),
        (dict(optimizer_bytes=2 * GIB), "(2.00 GiB): --config.mesh.fsdp=8 reduces it to 0.25 GiB"),
        (dict(compute_=compute(recomputed=3)), "recomputes 3 operations because memory is short"),
    ],
    ids=[
        "scores",
        "waiting",
        "twice",
        "gathers",
        "reduce",
        "moves",
        "moves, unrolled",
        "optimizer",
        "recomputed",
    ],
)
def test_each_waste(given, words):
    (line,) = find(**given)
    assert words in line


@pytest.mark.parametrize(
    "shape",
    ["f32[12,16,4,128,128]{4,3,2,1,0:T(8,128)S(1)}",
     "bf16[12,16,4,128,128]", "f32[16,128,128]", "f32[3,128,5,128]"],
    ids=["in the core's memory", "bfloat16", "of one head", "of other heads"],
)  # fmt: skip
def test_what_are_no_scores(shape):
    text = SCORES.replace("f32[12,16,4,128,128]{4,3,2,1,0:T(8,128)}", shape)
    assert wastes.attention_scores(hlo.parse(text), 128, 4) is None


def test_scores_of_the_train_step():
    assert wastes.attention_scores(hlo.parse(TRAIN_STEP), 128, 4) is None
