"""Kernels are checked on the device before they are used; here a CPU stands in for a TPU."""

import types

import jax
import jax.numpy as jnp
import pytest

from bert_jax.errors import UserError
from bert_jax.kernels import check, dispatch, platform
from bert_jax.kernels.tpu import blocks, local_rows, residual
from bert_jax.models import sizes

MODEL = sizes.named("tiny", vocab_size=60, dtype="float32")
MODERN = MODEL.replace(position="rotary", local_window=64, global_every=2)
DEBERTA = MODEL.replace(position="disentangled", position_buckets=64)
PALLAS = "attention=pallas"


@pytest.fixture(autouse=True)
def tpu(monkeypatch):
    monkeypatch.setattr(platform, "target_platform", lambda: "tpu")
    monkeypatch.setattr(platform, "interprets_kernels", lambda: True)
    monkeypatch.setattr(check, "_checked", set())
    monkeypatch.setattr(dispatch, "_disabled", {})


def chosen(rate, requested="auto"):
    case = dispatch.AttentionCase("float32", 128, 2, 64, rate)
    return dispatch.choose_attention(requested, case, platform.target()).implementation


def warnings_of(model):
    lines = []
    check.ensure(model, lines.append)
    return lines


@pytest.mark.long
@pytest.mark.parametrize("model", [MODEL, MODERN, DEBERTA], ids=["bert", "modern", "deberta"])
def test_kernels_that_are_right_are_used(model):
    for kernel in check.candidates(model).values():
        problem, difference = check.run(kernel)
        assert problem == "" and difference < check.BOUND
    assert warnings_of(model) == [] and chosen(0.1) == "pallas"


def wrong_gradient(true):
    def broken(options, *references):
        true(options, *references)
        references[-8][...] = references[-8][...] * 1.05  # the gradient of the key

    return broken


def wrong_angles(true):
    return lambda *arguments, **options: true(*arguments, **options) * 1.1


def raising(true):
    def broken(*arguments):
        raise NotImplementedError("Mosaic failed to compile\nand says much more of it")

    return broken


@pytest.mark.long
@pytest.mark.parametrize(
    "module, name, broken, model, problem",
    [
        (local_rows, "_backward", wrong_gradient, MODEL, "differs from the XLA form"),
        (local_rows, "_forward", raising, MODEL, "NotImplementedError: Mosaic failed to compile"),
        (blocks, "rotated", wrong_angles, MODERN, "differs from the XLA form"),
    ],
)
def test_a_broken_kernel_gives_one_warning_and_is_not_used(monkeypatch, module, name, broken, model, problem):
    monkeypatch.setattr(module, name, broken(getattr(module, name)))
    (line,) = warnings_of(model)
    assert PALLAS in line and problem in line
    assert (chosen(0.1), chosen(0.0)) == ("xla", "splash")
    with pytest.raises(UserError, match=f"model.{PALLAS} gives wrong results"):
        check.ensure(model.replace(attention="pallas"))
    with pytest.raises(UserError, match="failed its check"):
        chosen(0.1, "pallas")


@pytest.mark.long
def test_a_broken_kernel_of_norms_leaves_attention_alone(monkeypatch):
    monkeypatch.setattr(residual, "normalize_bwd", lambda g, *_: g)
    (line,) = warnings_of(MODEL)
    assert dispatch.NORM_KERNEL in line and chosen(0.1) == "pallas"
    assert not dispatch.fuses_norm("auto", "layernorm", 128, 128, platform.target())


def test_not_a_number_is_a_difference(monkeypatch):
    monkeypatch.setattr(check, "_compare", lambda *_: jnp.nan)
    assert PALLAS in warnings_of(MODEL)[0]


def test_processes_decide_together(monkeypatch):
    monkeypatch.setattr(check, "_compare", lambda *_: 0.0)
    monkeypatch.setattr(jax, "process_count", lambda: 2)

    others = iter([True, False, False])  # the first kernel fails on the other process

    def gather(failed):
        return jnp.stack([failed, next(others)])

    monkeypatch.setattr(check, "multihost_utils", types.SimpleNamespace(process_allgather=gather))
    (line,) = warnings_of(MODEL)
    assert PALLAS in line and "another process" in line and chosen(0.1) == "xla"
