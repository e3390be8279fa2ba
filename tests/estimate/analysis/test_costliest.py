"""The costliest operations of a program."""

import pytest
from support import gpu_programs
from support.programs import TRAIN_STEP

from bert_jax.estimate.analysis import costliest, gpu_program, hlo, timing
from bert_jax.estimate.chips.tpus import CHIPS

V5E = CHIPS["v5e"]
MODULE = hlo.parse(TRAIN_STEP)


def named(name):
    line = f'  ROOT %one = f32[8]{{0}} add(%a, %a), metadata={{op_name="{name}"}}'
    return hlo.parse(f"ENTRY %main (a: f32[8]) -> f32[8] {{\n{line}\n}}\n").computations["main"]["one"]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("jit(train_step)/jvp(PretrainingModel)/mlm/transform/dot_general", "mlm/transform/dot_general"),
        (
            "jit(train_step)/transpose(jvp(PretrainingModel))/encoder/layers_11/closed_call/stack/layer/"
            "layer._attend/key/dot_general",
            "encoder/layers/stack/layer/_attend/key/dot_general, backward",
        ),
        (
            "jit(f)/jvp(M)/encoder/layers/while/body/checkpoint/layers/layer/layer._attend/"
            "triton_attention_flops_12/pallas_call",
            "encoder/layers/layer/_attend/pallas_call",
        ),
        ("", "added by the compiler"),
    ],
)
def test_the_place_of_an_operation_is_that_of_its_like_in_all_layers(name, expected):
    assert costliest.place(named(name)) == expected


def test_the_times_of_a_tpu_program_add_up_to_its_time():
    found = costliest.find(timing.costs(MODULE, V5E, {}), 100)
    assert sum(group.seconds for group in found) == pytest.approx(timing.compute(MODULE, V5E).seconds)
    product, *others = found
    assert (product.name, product.kind, product.count) == ("dot_general", "fusion", 3)
    assert product.seconds == pytest.approx(3 * 1000 / V5E.clock)
    assert product.flops == 3 * 2 * 16 * 64 * 32 and product.bytes == 3 * (2 * 16 * 64 + 4 * 16 * 32)
    assert ("splash_mha_fwd", timing.PALLAS) in {(group.name, group.kind) for group in others}
    assert costliest.find(timing.costs(MODULE, V5E, {}), 1) == [product]


def test_the_times_of_a_gpu_program_are_bounds():
    costs = gpu_program.read(hlo.parse(gpu_programs.TRAIN_STEP)).costs(1e15, 1e12)
    found = costliest.find(costs, 100)
    assert sum(group.seconds for group in found) == pytest.approx(sum(cost.seconds for cost in costs))
    assert [group.seconds for group in found] == sorted((group.seconds for group in found), reverse=True)
    assert gpu_program.CUBLAS in {group.kind for group in found}
