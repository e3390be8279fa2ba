"""HLO text read into instructions, with how often each runs."""

import pytest
from support import programs

from bert_jax.estimate import hlo

MODULE = hlo.parse(programs.TPU)


def visits(name):
    return [visit for visit in hlo.walk(MODULE) if visit.instruction.name == name]


def test_an_instruction_with_a_tuple_of_arrays():
    reduce = MODULE.computations["body"]["all-reduce.1"]
    assert reduce.opcode == "all-reduce" and reduce.operands == ("slice_fusion", "product_fusion")
    assert [(array.dtype, array.dims, array.bytes) for array in reduce.arrays] == [
        ("f32", (8, 128), 4096),
        ("f32", (16, 32), 2048),
    ]
    assert reduce.called("to_apply") == "sum" and reduce.estimated_cycles is None


def test_metadata_over_several_lines():
    kernel = MODULE.computations["body"]["kernel"]
    assert kernel.target == "tpu_custom_call" and "block_q" in kernel.attributes
    assert list(MODULE.computations["body"])[-1] == "after"


@pytest.mark.parametrize(
    "name, times, fused",
    [
        ("copy.1.remat", 1, False),
        ("product_fusion", 3, False),
        ("product", 3, True),
        ("all-gather.1", 1, True),
    ],
)
def test_how_often_each_runs(name, times, fused):
    assert [(visit.times, visit.fused) for visit in visits(name)] == [(times, fused)]


def loop(condition, attributes=""):
    text = f"""\
%cond (s: (s32[])) -> pred[] {{
  %s = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
{condition}
}}

ENTRY %main (p: (s32[])) -> (s32[]) {{
  %p = (s32[]) parameter(0)
  ROOT %w = (s32[]) while(%p), condition=%cond, body=%body{attributes}
}}
"""
    module = hlo.parse(text)
    return hlo.trip_count(module, module.computations["main"]["w"])


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
    assert loop(condition, attributes) == expected
