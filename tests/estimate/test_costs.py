"""Traffic, cycles, bytes and FLOPs added up over a program."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from support import programs

from bert_jax.estimate import costs, hlo
from bert_jax.estimate.hardware import CHIPS

V5E = CHIPS["v5e"]
LINE = [(0, (i,)) for i in range(8)]
MODULE = hlo.parse(programs.TPU)


def visit(name):
    return next(visit for visit in hlo.walk(MODULE) if visit.instruction.name == name)


def test_cycles_of_a_loop_count_once_for_each_trip():
    cycles = 3 * (100 + 1000) + 10 + 500
    assert costs.compute(MODULE, V5E).seconds["compute"] == pytest.approx(cycles / 1.5e9)


def test_a_kernel_without_an_estimate_is_added_and_named():
    found = costs.compute(MODULE, V5E)
    traffic = 3 * 4 * (3 * 8 * 128 + 16 * 128) / 819e9  # the kernel reads the whole stack, and writes
    assert found.added == {"tpu_custom_call": 3}
    assert found.seconds["without_estimate"] == pytest.approx(traffic)


def test_a_kernel_with_a_schedule_takes_the_longer_of_it_and_its_bytes():
    settings = 'custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"TUzv"}}'
    module = hlo.parse(programs.TPU.replace('custom_call_target="tpu_custom_call"', settings))
    without = costs.compute(module, V5E)
    for cycles, seconds in ((15e6, 3e-2), (1.0, without.seconds["without_estimate"])):
        found = costs.compute(module, V5E, {"TUzv": cycles})
        assert found.kernels == 3 and not found.added and found.seconds["without_estimate"] == 0
        assert found.seconds["kernels"] == pytest.approx(seconds)
    assert costs.compute(module, V5E, {"another": 1.0}) == without


@pytest.mark.parametrize(
    "name, expected",
    [
        ("slice_fusion", 4 * (8 * 128 + 8 * 128) + 4),  # one layer of the stack, the output, the index
        ("product_fusion", 2 * 16 * 64 + 4 * 16 * 32),  # the other operand is in the core's memory
        ("copy.1.remat", 2 * 4 * 8 * 128),
    ],
)
def test_bytes_of_hbm(name, expected):
    assert costs.hbm_bytes(MODULE, visit(name)) == expected


@pytest.mark.parametrize(
    "condition, attributes, expected",
    [
        ("  %n = s32[] constant(24)\n  ROOT %c = pred[] compare(%i, %n), direction=LT", "", 24),
        (
            "  %n = s32[] constant(24)\n  ROOT %c = pred[] compare(%i, %n), direction=LT",
            ', backend_config={"known_trip_count":{"n":"12"}}',
            12,
        ),
        ("  ROOT %c = pred[] compare(%i, %i), direction=LT", "", None),
    ],
    ids=["constant", "noted", "unknown"],
)
def test_trip_counts(condition, attributes, expected):
    module = hlo.parse(f"""\
%cond (s: (s32[])) -> pred[] {{
  %s = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
{condition}
}}

ENTRY %main (p: (s32[])) -> (s32[]) {{
  %p = (s32[]) parameter(0)
  ROOT %w = (s32[]) while(%p), condition=%cond, body=%body{attributes}
}}
""")
    assert hlo.trip_count(module, module.computations["main"]["w"]) == expected
    assert costs.unknown_loops(module) == (expected is None)


def test_an_update_in_place_costs_what_it_writes():
    text = """\
%update (param_0: f32[12,8,128], param_1: f32[1,8,128]) -> f32[12,8,128] {
  %param_0 = f32[12,8,128] parameter(0)
  %param_1 = f32[1,8,128] parameter(1)
  %zero = s32[] constant(0)
  ROOT %put = f32[12,8,128] dynamic-update-slice(%param_0, %param_1, %zero, %zero, %zero)
}

ENTRY %main (a: f32[12,8,128], b: f32[1,8,128]) -> f32[12,8,128] {
  %a = f32[12,8,128] parameter(0)
  %b = f32[1,8,128] parameter(1)
  %fused = f32[12,8,128] fusion(%a, %b), kind=kLoop, calls=%update
  %zero.1 = s32[] constant(0)
  ROOT %bare = f32[12,8,128] dynamic-update-slice(%fused, %b, %zero.1, %zero.1, %zero.1)
}
"""
    module = hlo.parse(text)
    by_name = {visit.instruction.name: visit for visit in hlo.walk(module)}
    for name in ("fused", "bare"):
        assert costs.hbm_bytes(module, by_name[name]) == 2 * 4 * 8 * 128, name


def test_a_program_that_xla_compiled():
    def f(x, w):
        def layer(x, w):
            return jnp.tanh(x @ w), None

        return jax.lax.scan(layer, x, w)[0]

    x, w = jax.ShapeDtypeStruct((16, 64), jnp.float32), jax.ShapeDtypeStruct((5, 64, 64), jnp.float32)
    text = jax.jit(f).lower(x, w).compile().as_text()
    assert costs.matrix_flops(hlo.parse(text)) == 5 * 2 * 16 * 64 * 64


def test_products_of_libraries_on_gpus():
    """Three trips with two products of cuBLAS, and cuDNN's attention forward, and once backward."""
    module = hlo.parse(programs.GPU)
    product, scores = 2 * 16 * 64 * 32, 2 * 2 * 4 * 8 * 8 * 16
    assert costs.matrix_flops(module) == 3 * 2 * product + (3 * 2 + 5) * scores + 2 * 16 * 64 * 8
    weights, x, out = 2 * 64 * 32, 2 * 16 * 64, 2 * 16 * 32  # without the 4 MiB of room that cuBLAS has
    cublas = [
        visit for visit in hlo.walk(module) if "__cublas" in visit.instruction.target and not visit.fused
    ]
    assert [costs.hbm_bytes(module, visit) for visit in cublas] == [x + weights + out]


# Cycles of Pallas kernels


def double(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


def double_often(x_ref, out_ref):
    out_ref[...] = jax.lax.fori_loop(0, x_ref[0, 0].astype(jnp.int32), lambda _, x: x * 2, x_ref[...])


def double_lines(x_ref, out_ref):
    def double_line(line, _):
        out_ref[pl.ds(line, 1)] = x_ref[pl.ds(line, 1)] * 2

    jax.lax.fori_loop(2, 8, double_line, None)


def kernel_program(kernel, semantics=("arbitrary", "parallel")):
    """A compiled program of one kernel over a grid of 2 x 3 blocks; not all of what a compiler writes."""
    block = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    x = jax.ShapeDtypeStruct((16, 384), jnp.float32)
    parameters = pltpu.CompilerParams(dimension_semantics=semantics)
    call = pl.pallas_call(
        kernel, grid=(2, 3), in_specs=[block], out_specs=block, out_shape=x, compiler_params=parameters
    )
    lowered = jax.jit(call).trace(x).lower(lowering_platforms=("tpu",)).as_text()
    settings = re.search(r'backend_config = "((?:[^"\\]|\\22)*)"', lowered)[1].replace("\\22", '"')
    return hlo.parse(
        f"ENTRY %main (x: f32[16,384]) -> f32[16,384] {{\n  %x = f32[16,384] parameter(0)\n  ROOT %kernel = "
        f'f32[16,384] custom-call(%x), custom_call_target="tpu_custom_call", backend_config={settings}\n}}\n'
    )


def test_cycles_of_kernels_by_the_compilers_schedules(tmp_path):
    path = tmp_path / "123-kernel-01-schedule-analysis_packed-bundles-post-ra.txt"
    path.write_text("Schedule analysis:\n\ttotal scheduled bundles:    70\n")
    bundles = costs.read_schedules(str(tmp_path))
    assert bundles == {"kernel": 70}
    serial = ("arbitrary", "arbitrary")
    for kernel, name, semantics, executions in (
        (double, "v5e", serial, 6), (double, "v4", serial, 6), (double, "v4", ("arbitrary", "parallel"), 4),
        (double_lines, "v5e", serial, 36), (double_often, "v5e", serial, None),
    ):  # fmt: skip
        found = costs.kernel_cycles(kernel_program(kernel, semantics), CHIPS[name], bundles)
        assert list(found.values()) == ([70 * executions] if executions else [])


# Traffic

ALONG_DATA = [[0, 4], [1, 5], [2, 6], [3, 7]]
ALONG_FSDP = [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.parametrize(
    "attributes, groups",
    [
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%sum", ALONG_DATA),
        ("replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%sum", ALONG_DATA),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}, to_apply=%sum", ALONG_DATA),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", ALONG_DATA),
        ("replica_groups=mesh['a'=8] {'a':(2)2}", ALONG_FSDP),
        ("replica_groups=[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("replica_groups={}, to_apply=%sum", [list(range(8))]),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", [list(range(8))]),
        ("source_target_pairs={{0,4},{4,0},{1,5}}", [[0, 4], [1, 5], [4, 0]]),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}, to_apply=%sum", ALONG_DATA),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=(0,4,1,5,2,6,3,7) {'b'}", ALONG_DATA),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=(0,1,9) {'a'}", None),
        ("replica_groups={{0,1,2},{3,4}}", None),
        ("to_apply=%sum", None),
    ],
)
def test_groups(attributes, groups):
    found = costs.replica_groups(attributes, 8)
    assert (found if found is None else found.tolist()) == groups


def test_what_a_program_sends():
    found = costs.collectives(hlo.parse(programs.TPU), {"data": 4, "fsdp": 2, "tensor": 1}, V5E, LINE)
    reduce, gather = found
    assert (reduce.kind, reduce.axes, reduce.group, reduce.times) == ("all-reduce", ("data",), 4, 3)
    assert reduce.payload == 4 * (8 * 128 + 16 * 32) and not reduce.overlapped
    assert (gather.kind, gather.axes, gather.times) == ("all-gather", ("data", "fsdp"), 1)
    assert gather.payload == 4 * 8 * 128 and gather.overlapped
    # A line of 8 chips has one link each way: 2 x 3/4 of the bytes go along it.
    assert reduce.seconds == pytest.approx(2 * 0.75 * reduce.payload / 50e9)
    assert gather.seconds == pytest.approx(0.75 * gather.payload / 50e9)


@pytest.mark.parametrize(
    "chip, kind, positions, expected",
    [
        # Both directions of a closed ring of 16, along two sides of the torus.
        ("v5e", "all-reduce", [(0, (x, y)) for x in range(16) for y in range(16)], 2 * 255 / 256 / 200),
        ("v5e", "all-reduce", [(0, (x, y)) for x in range(4) for y in range(4)], 2 * 15 / 16 / 100),
        ("v5e", "reduce-scatter", [(0, (x, 0)) for x in range(2)], 1 / 2 / 50),
        ("v5e", "collective-permute", [(0, (0, 0)), (0, (0, 1))], 1 / 50),
        # Between two slices each chip sends its part of what the slice has added up.
        ("v5e", "all-reduce", [(s, (x, 0)) for s in range(2) for x in range(2)], 1 / 50 + 1 / 2 / 3.125),
        ("v5e", "collective-permute", [(0, (0, 0)), (1, (0, 0))], 1 / 3.125),
        ("v5e", "all-reduce", [(0, (0, 0))], 0),
        # One of the two devices of each chip leaves half of the link to the other.
        ("tpu7x", "all-reduce", [(0, (x, 0, 0)) for x in range(2)], 2 * 1 / 2 / 50),
        ("tpu7x", "all-reduce", [(0, (x, 0, 0)) for x in range(2) for core in range(2)], 2 * 3 / 4 / 100),
        ("tpu7x", "all-gather", [(0, (0, 0, 0)) for core in range(2)], 1 / 2 / 100),
        ("tpu7x", "collective-permute", [(0, (0, 0, 0)), (0, (1, 0, 0))], 1 / 50),
        ("tpu7x", "collective-permute", [(0, (0, 0, 0)), (1, (0, 0, 0))], 1 / 6.25),
    ],
)
def test_seconds_of_a_ring(chip, kind, positions, expected):
    assert costs.ring_seconds(kind, 1e9, CHIPS[chip], positions) == pytest.approx(expected)


def test_a_reduce_scatter_as_the_compiler_fuses_it():
    text = """\
%all-reduce-scatter (input: f32[128,512]) -> f32[64,512] {
  %input = f32[128,512]{1,0} parameter(0)
  %all-reduce = f32[128,512]{1,0} all-reduce(%input), replica_groups={{0,1},{2,3}}, to_apply=%sum
  %zero = s32[] constant(0)
  ROOT %part = f32[64,512]{1,0} dynamic-slice(%all-reduce, %zero, %zero), dynamic_slice_sizes={64,512}
}

ENTRY %main (x: f32[128,512]) -> f32[64,512] {
  %x = f32[128,512]{1,0} parameter(0)
  ROOT %fusion = f32[64,512]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter
}
"""
    (found,) = costs.collectives(hlo.parse(text), {"data": 2, "fsdp": 2, "tensor": 1}, V5E, LINE)
    assert (found.kind, found.axes, found.overlapped) == ("reduce-scatter", ("fsdp",), False)
    assert found.payload == 4 * 128 * 512
    assert found.seconds == pytest.approx(found.payload / 2 / 50e9)


def test_what_goes_between_slices():
    attributes = 'is_host_transfer=true, frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}'
    text = f"""\
ENTRY %main (x: f32[960,8,128]) -> token[] {{
  %x = f32[960,8,128]{{2,1,0:T(8,128)}} parameter(0)
  %after-all = token[] after-all()
  %send = (f32[960,8,128]{{2,1,0:T(8,128)}}, u32[], token[]) send(%x, %after-all), channel_id=3, {attributes}
  ROOT %send-done = token[] send-done(%send), channel_id=3, is_host_transfer=true
}}
"""
    slices = [(number, (chip,)) for number in range(2) for chip in range(4)]
    (found,) = costs.collectives(hlo.parse(text), {"data": 4, "fsdp": 2, "tensor": 1}, V5E, slices)
    assert (found.kind, found.axes, found.group, found.overlapped) == ("all-reduce", ("slices",), 2, True)
    assert found.seconds == pytest.approx(2 * 960 * 8 * 128 * 4 / 2 / 3.125e9)


def test_asynchronous_collectives_of_one_channel_are_several():
    def fused(number, part, marker):
        end = f', custom_call_target="{marker}"' if marker else ""
        return f"""\
%{part}-{number} (input: f32[{number},128]) -> f32[{number},128] {{
  %input = f32[{number},128]{{1,0}} parameter(0)
  %sum = f32[{number},128]{{1,0}} all-reduce(%input), channel_id=1, replica_groups={{{{0,1,2,3}}}}
  ROOT %end = f32[{number},128]{{1,0}} custom-call(%sum){end}
}}
"""

    parts = {"start": "AsyncCollectiveStart", "more": "", "end": "AsyncCollectiveDone"}
    calls = "\n".join(
        f"  {'ROOT ' * (part == 'end' and number == 16)}%{part}.{number} = f32[{number},128] fusion(%x), "
        f"kind=kCustom, calls=%{part}-{number}"
        for number in (8, 16)
        for part in parts
    )
    text = "\n".join(fused(number, *part) for number in (8, 16) for part in parts.items())
    text += f"\nENTRY %main (x: f32[8,128]) -> f32[16,128] {{\n  %x = f32[8,128] parameter(0)\n{calls}\n}}\n"
    found = costs.collectives(hlo.parse(text), {"data": 4, "fsdp": 1, "tensor": 1}, V5E, LINE)
    assert [(one.payload, one.overlapped) for one in found] == [(4 * 8 * 128, True), (4 * 16 * 128, True)]


def test_all_reduces_on_sparse_cores_overlap_and_take_no_time_of_the_chip():
    text = """\
%offloaded (input: f32[8,128]) -> f32[8,128] {
  %input = f32[8,128]{1,0} parameter(0)
  ROOT %sum = f32[8,128]{1,0} all-reduce(%input), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
}, execution_thread="sparsecore"

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128] parameter(0)
"""
    for number in (1, 2):  # of one channel
        text += f"""\
  %start.{number} = ((), (), (s32[1])) call-start(), async_execution_thread="sparsecore", to_apply=%offloaded
  %update.{number} = ((f32[8,128]), (f32[8,128])) call-update(%start.{number}, %x)
  {"ROOT " * (number == 2)}%done.{number} = f32[8,128] call-done(%update.{number})
"""
    module = hlo.parse(text + "}\n")
    found = costs.collectives(module, {"data": 4, "fsdp": 1, "tensor": 1}, V5E, LINE)
    assert [(one.kind, one.payload, one.overlapped) for one in found] == [
        ("all-reduce", 4 * 8 * 128, True)
    ] * 2
    assert not any(costs.compute(module, V5E).seconds.values())
