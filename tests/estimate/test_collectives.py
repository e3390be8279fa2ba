"""Traffic: groups in every spelling, the axes they lie along, and how long a ring takes."""

import pytest
from support import programs

from bert_jax.estimate import collectives, hlo, timing
from bert_jax.estimate.tpus import CHIPS

V5E = CHIPS["v5e"]
LINE = [(0, (i,)) for i in range(8)]

ALONG_DATA = [[0, 4], [1, 5], [2, 6], [3, 7]]
ALONG_FSDP = [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.parametrize(
    "attributes, groups",
    [
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%sum", ALONG_DATA),
        ("replica_groups={{0, 4}, {1, 5}, {2, 6}, {3, 7}}", ALONG_DATA),
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
    found = collectives.replica_groups(attributes, 8)
    assert (found if found is None else found.tolist()) == groups


def test_what_a_program_sends():
    found = collectives.find(hlo.parse(programs.TPU), {"data": 4, "fsdp": 2, "tensor": 1}, V5E, LINE)
    reduce, gather = found
    assert (reduce.kind, reduce.axes, reduce.group, reduce.times) == ("all-reduce", ("data",), 4, 3)
    assert reduce.payload == 4 * (8 * 128 + 16 * 32) and not reduce.overlapped
    assert (gather.kind, gather.axes, gather.times) == ("all-gather", ("data", "fsdp"), 1)
    assert gather.payload == 4 * 8 * 128 and gather.overlapped
    # A line of 8 chips has one link each way: 2 x 3/4 of the bytes go along it.
    assert reduce.seconds == pytest.approx(2 * 0.75 * reduce.payload / 50e9)
    assert gather.seconds == pytest.approx(0.75 * gather.payload / 50e9)


GIGABYTE = 1e9


@pytest.mark.parametrize(
    "kind, positions, expected",
    [
        # Both directions of a closed ring of 16, along two sides of the torus.
        ("all-reduce", [(0, (x, y)) for x in range(16) for y in range(16)], 2 * 255 / 256 / 200),
        ("all-reduce", [(0, (x, y)) for x in range(4) for y in range(4)], 2 * 15 / 16 / 100),
        ("reduce-scatter", [(0, (x, 0)) for x in range(2)], 1 / 2 / 50),
        ("collective-permute", [(0, (0, 0)), (0, (0, 1))], 1 / 50),
        # Between two slices each chip sends its part of what the slice has added up.
        ("all-reduce", [(s, (x, 0)) for s in range(2) for x in range(2)], 1 / 50 + 1 / 2 / 3.125),
        ("collective-permute", [(0, (0, 0)), (1, (0, 0))], 1 / 3.125),
        ("all-reduce", [(0, (0, 0))], 0),
    ],
    ids=["pod", "part", "pair", "neighbor", "slices", "next slice", "alone"],
)
def test_seconds(kind, positions, expected):
    assert collectives._seconds(kind, GIGABYTE, V5E, positions) == pytest.approx(expected)


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
    (found,) = collectives.find(hlo.parse(text), {"data": 2, "fsdp": 2, "tensor": 1}, V5E, LINE)
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
    (found,) = collectives.find(hlo.parse(text), {"data": 4, "fsdp": 2, "tensor": 1}, V5E, slices)
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
    found = collectives.find(hlo.parse(text), {"data": 4, "fsdp": 1, "tensor": 1}, V5E, LINE)
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
    found = collectives.find(module, {"data": 4, "fsdp": 1, "tensor": 1}, V5E, LINE)
    assert [(one.kind, one.payload, one.overlapped) for one in found] == [
        ("all-reduce", 4 * 8 * 128, True)
    ] * 2
    assert timing.compute(module, V5E).seconds == 0
