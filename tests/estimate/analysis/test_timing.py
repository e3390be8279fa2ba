"""Cycles, bytes and rooflines added up over a program."""

import pytest
from support.programs import TRAIN_STEP

from bert_jax.estimate.analysis import hlo, timing
from bert_jax.estimate.chips.tpus import CHIPS

V5E = CHIPS["v5e"]
MODULE = hlo.parse(TRAIN_STEP)


def visit(name):
    return next(visit for visit in hlo.walk(MODULE) if visit.instruction.name == name)


def test_cycles_of_a_loop_count_once_for_each_trip():
    cycles = 3 * (100 + 1000) + 10 + 500
    assert timing.compute(MODULE, V5E).estimated_seconds == pytest.approx(cycles / 1.5e9)


def test_a_kernel_without_an_estimate_is_added_and_named():
    without = timing.compute(MODULE, V5E)
    traffic = 3 * 4 * (3 * 8 * 128 + 16 * 128) / 819e9  # the kernel reads the whole stack, and writes
    assert without.added == {"tpu_custom_call": 3} and without.added_seconds == pytest.approx(traffic)
    with_flops = timing.compute(MODULE, V5E, attention_flops=197e9)
    assert with_flops.added_seconds == pytest.approx(traffic + 1e-3)
    assert with_flops.matrix_flops == without.matrix_flops + 197e9
    for head_size, idle in ((64, 2), (128, 1), (256, 1)):
        found = timing.compute(MODULE, V5E, attention_flops=197e9, head_size=head_size)
        assert found.added_seconds == pytest.approx(traffic + idle * 1e-3)
        assert found.matrix_flops == with_flops.matrix_flops


def test_a_kernel_with_a_schedule_takes_the_longer_of_it_and_its_bytes():
    settings = 'custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"TUzv"}}'
    module = hlo.parse(TRAIN_STEP.replace('custom_call_target="tpu_custom_call"', settings))
    without = timing.compute(module, V5E, attention_flops=197e9)
    for cycles, seconds in ((15e6, 3e-2), (1.0, without.added_seconds - 1e-3)):
        found = timing.compute(module, V5E, attention_flops=197e9, kernel_cycles={"TUzv": cycles})
        assert found.kernels == 3 and not found.added and found.added_seconds == 0
        assert found.kernel_seconds == pytest.approx(seconds)
        assert found.seconds == found.estimated_seconds + found.kernel_seconds
        assert found.matrix_flops == without.matrix_flops and found.hbm_bytes == without.hbm_bytes
    assert timing.compute(module, V5E, 197e9, kernel_cycles={"another": 1.0}) == without


def test_attention_flops_are_left_out_where_there_is_no_kernel():
    text = TRAIN_STEP.replace("tpu_custom_call", "AllocateBuffer")
    assert timing.compute(hlo.parse(text), V5E, attention_flops=197e9).added_seconds == 0
    text = TRAIN_STEP.replace("splash_mha_fwd", "output_norm/residual_norm/shard_map/pallas_call")
    found = timing.compute(hlo.parse(text), V5E, attention_flops=197e9)
    assert found == timing.compute(MODULE, V5E)


def test_moves_and_recomputed_operations():
    compute = timing.compute(MODULE, V5E)
    # The slice of one layer's parameters and the copy at the end.
    assert compute.moving_seconds == pytest.approx((3 * 100 + 500) / 1.5e9)
    assert compute.recomputed == 1 and compute.unknown_loops == 0


@pytest.mark.parametrize(
    "name, expected",
    [
        ("slice_fusion", 4 * (8 * 128 + 8 * 128) + 4),  # one layer of the stack, the output, the index
        ("product_fusion", 2 * 16 * 64 + 4 * 16 * 32),  # the other operand is in the core's memory
        ("copy-start", 2 * 64 * 32),
        ("copy.1.remat", 2 * 4 * 8 * 128),
    ],
)
def test_bytes_of_hbm(name, expected):
    assert timing.hbm_bytes(MODULE, visit(name)) == expected


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
        assert timing.hbm_bytes(module, by_name[name]) == 2 * 4 * 8 * 128, name


def test_the_roofline_is_the_larger_bound():
    compute = timing.compute(MODULE, V5E)
    assert compute.roofline(V5E) == compute.hbm_bytes / 819e9 > compute.matrix_flops / 197e12
