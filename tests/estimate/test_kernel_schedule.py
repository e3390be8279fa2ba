"""Cycles of Pallas kernels by the schedule of the TPU's compiler."""

import importlib.metadata
import json
import math
import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.estimate import kernel_schedule
from bert_jax.estimate.analysis import hlo, timing
from bert_jax.estimate.chips.tpus import CHIPS, Slices

ONE_CHIP = Slices(CHIPS["v5e"], (1, 1))


def has_libtpu():
    try:
        return bool(importlib.metadata.version("libtpu"))
    except importlib.metadata.PackageNotFoundError:
        return False


def double(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


def double_often(x_ref, out_ref):
    out_ref[...] = jax.lax.fori_loop(0, x_ref[0, 0].astype(jnp.int32), lambda _, x: x * 2, x_ref[...])


def double_lines(x_ref, out_ref):
    def double_line(line, _):
        out_ref[pl.ds(line, 1)] = x_ref[pl.ds(line, 1)] * 2

    jax.lax.fori_loop(2, 8, double_line, None)


def program(kernel, scale=1, semantics=("arbitrary", "parallel")):
    """A compiled program of one kernel over a grid of 2 x 3 blocks; not all of what a compiler writes."""

    def call(x):
        return pl.pallas_call(
            kernel,
            grid=(2, 3),
            in_specs=[pl.BlockSpec((8, 128 * scale), lambda i, j: (i, j))],
            out_specs=pl.BlockSpec((8, 128 * scale), lambda i, j: (i, j)),
            out_shape=x,
            compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
        )(x)

    shape = (16, 384 * scale)
    traced = jax.jit(call).trace(jax.ShapeDtypeStruct(shape, jnp.float32))
    lowered = traced.lower(lowering_platforms=("tpu",)).as_text()
    settings = re.search(r'backend_config = "((?:[^"\\]|\\22)*)"', lowered)[1].replace("\\22", '"')
    settings = settings.replace("\\\\", "\\")
    array = f"f32[{shape[0]},{shape[1]}]{{1,0}}"
    return hlo.parse(
        f"ENTRY %main (x: {array}) -> {array} {{\n  %x = {array} parameter(0)\n  ROOT %kernel = {array} "
        f'custom-call(%x), custom_call_target="tpu_custom_call", backend_config={settings}\n}}\n'
    )


def code_of(module):
    return timing.kernel_code(module.computations[module.entry]["kernel"])


def test_the_grid_of_a_kernel_and_the_cores_that_share_it():
    code = kernel_schedule.read_code(code_of(program(double)))
    assert code.grid == (2, 3) and code.parallel == (False, True) and code.turns == 1
    assert [code.steps(cores) for cores in (1, 2, 3)] == [6, 4, 2]
    alone = kernel_schedule.read_code(code_of(program(double, semantics=("arbitrary", "arbitrary"))))
    assert alone.steps(2) == 6
    assert kernel_schedule.read_code(code_of(program(double_lines))).turns == 6
    assert math.isinf(kernel_schedule.read_code(code_of(program(double_often))).turns)


@pytest.mark.long
def test_without_a_schedule_one_line_says_so(monkeypatch):
    monkeypatch.setattr(kernel_schedule, "_OPTIONS", "--no_such_option={}")
    lines = []
    assert kernel_schedule.cycles(program(double), ONE_CHIP, lines.append) == {}
    assert len(lines) == 1 and "no schedule of Pallas kernels: " in lines[0]


def test_programs_without_kernels_need_no_compiler(monkeypatch):
    monkeypatch.setattr(kernel_schedule.subprocess, "run", None)
    assert kernel_schedule.cycles(hlo.parse("ENTRY %main () -> () {\n}\n"), ONE_CHIP) == {}


@pytest.mark.skipif(not has_libtpu(), reason="needs libtpu")
def test_cycles_of_the_compilers_schedule():
    kernels = program(double), program(double, scale=64), program(double_often), program(double_lines)
    found = [kernel_schedule.cycles(module, ONE_CHIP, pytest.fail).get(code_of(module)) for module in kernels]
    # A step reads, doubles and writes the registers of a block, 1 and 64 of them, one after another at most.
    assert 6 * 10 < found[0] < found[1] < found[0] + 6 * 64 * 4
    assert found[1] > 6 * 64 and found[2] is None and found[3] % 36 == 0 and found[3] > 2 * found[0]


def test_what_is_given_to_the_compiler_is_json():
    (kernel,) = kernel_schedule._unique(hlo.walk(program(double))).values()
    kernel = json.loads(json.dumps(kernel))
    assert kernel["operands"] == kernel["results"] == [["f32", [16, 384]]]
    assert kernel["settings"]["custom_call_config"]["body"]
