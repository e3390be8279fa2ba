"""Cycles of Pallas kernels by the schedule of the TPU's compiler."""

import importlib.metadata
import math
import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.estimate import hlo, pallas_schedule, timing
from bert_jax.estimate.tpus import CHIPS, Slices

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


def test_how_often_the_busiest_core_runs_a_kernel():
    def count(kernel, cores=1, **options):
        return pallas_schedule.executions(code_of(program(kernel, **options)), cores)[1]

    assert [count(double, cores) for cores in (1, 2, 3)] == [6, 4, 2]
    assert count(double, 2, semantics=("arbitrary", "arbitrary")) == 6
    assert count(double_lines) == 36 and math.isinf(count(double_often))


@pytest.mark.long
def test_without_a_schedule_one_line_says_so(monkeypatch):
    monkeypatch.setattr(pallas_schedule, "_OPTIONS", "--no_such_option={}")
    lines = []
    assert pallas_schedule.cycles(program(double), ONE_CHIP, lines.append) == {}
    assert len(lines) == 1 and "no schedule of Pallas kernels: " in lines[0]


@pytest.mark.skipif(not has_libtpu(), reason="needs libtpu")
def test_cycles_of_the_compilers_schedule():
    kernels = program(double), program(double, scale=64), program(double_often), program(double_lines)
    found = [pallas_schedule.cycles(module, ONE_CHIP, pytest.fail).get(code_of(module)) for module in kernels]
    # A step reads, doubles and writes the registers of a block, 1 and 64 of them, one after another at most.
    assert 6 * 10 < found[0] < found[1] < found[0] + 6 * 64 * 4
    assert found[1] > 6 * 64 and found[2] is None and found[3] % 36 == 0 and found[3] > 2 * found[0]
