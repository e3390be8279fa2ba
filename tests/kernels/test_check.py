"""Kernels are checked on the device before they are used; here a CPU stands in for a TPU."""

import types

import jax
import jax.numpy as jnp
import pytest

from bert_jax.errors import UserError
from bert_jax.kernels import check, dispatch, platform
from bert_jax.kernels.tpu import blocks, residual, whole_rows
from bert_jax.models import sizes

MODEL = sizes.named("tiny", vocab_size=60, dtype="float32")
MODERN = MODEL.replace(
    position="rotary", norm_placement="pre", norm="rmsnorm", norm_bias=False, local_window=64, global_every=2
)
PALLAS, RESIDUAL, SPLASH = "attention=pallas", "residual=pallas", "attention=splash"


@pytest.fixture(autouse=True)
def tpu(monkeypatch):
    monkeypatch.setattr(platform, "target_platform", lambda: "tpu")
    monkeypatch.setattr(platform, "interprets_kernels", lambda: True)
    monkeypatch.setattr(check, "_results", {})
    monkeypatch.setattr(dispatch, "_disabled", {})


def chosen(requested="auto", rate=0.1):
    case = dispatch.AttentionCase("float32", 128, 2, 64, rate)
    return dispatch.choose_attention(requested, case, platform.target()).implementation


def problems(model):
    lines = []
    check.ensure(model, lines.append)
    return {kernel: result.problem for (kernel, _), result in check._results.items()}, lines


@pytest.mark.long
@pytest.mark.parametrize("model", [MODEL, MODERN], ids=["bert", "modern"])
def test_kernels_that_are_right_are_used(model):
    found, lines = problems(model)
    assert found == dict.fromkeys((PALLAS, SPLASH, RESIDUAL), "") and lines == []
    assert check.results()[0].difference < check.BOUND
    assert chosen() == "pallas"


def wrong_gradient(monkeypatch):
    true = whole_rows._backward

    def broken(options, *references):
        true(options, *references)
        references[-5][...] = references[-5][...] * 1.05  # the gradient of the key

    monkeypatch.setattr(whole_rows, "_backward", broken)


def raising(monkeypatch):
    def broken(*arguments):
        raise NotImplementedError("Mosaic failed to compile\nand says much more of it")

    monkeypatch.setattr(whole_rows, "_forward", broken)


@pytest.mark.long
@pytest.mark.parametrize(
    "break_it, problem",
    [
        (wrong_gradient, "differs from the XLA form"),
        (raising, "NotImplementedError: Mosaic failed to compile"),
    ],
)
def test_a_broken_kernel_gives_one_warning_and_is_not_used(monkeypatch, break_it, problem):
    break_it(monkeypatch)
    _, lines = problems(MODEL)
    assert len(lines) == 1 and PALLAS in lines[0] and problem in lines[0]
    assert (chosen(), chosen(rate=0.0)) == ("xla", "splash")
    check._results.clear()
    with pytest.raises(UserError, match=f"{PALLAS} failed its check"):
        check.ensure(MODEL.replace(attention="pallas"))


@pytest.mark.long
@pytest.mark.parametrize("module, name", [(residual, "_pre_backward"), (blocks, "rotated")])
def test_a_broken_kernel_of_a_model_with_norms_first(monkeypatch, module, name):
    true = getattr(module, name)

    def broken(*arguments, **options):
        if module is blocks:
            return true(*arguments, **options) * 1.1
        true(*arguments, **options)
        arguments[4][...] = arguments[4][...] * 1.1
        return None

    monkeypatch.setattr(module, name, broken)
    found, _ = problems(MODERN)
    assert found[PALLAS if module is blocks else RESIDUAL] and sum(map(bool, found.values())) == 1


def test_not_a_number_is_a_difference(monkeypatch):
    monkeypatch.setattr(check, "_differences", lambda *_: [jnp.nan])
    assert problems(MODEL)[0][PALLAS]


def test_processes_decide_together(monkeypatch):
    monkeypatch.setattr(check, "_differences", lambda *_: [0.0])
    monkeypatch.setattr(jax, "process_count", lambda: 2)

    def gather(failed):
        others = failed.copy()
        others[0] = True  # the first kernel, on the other process
        return jnp.stack([failed, others])

    monkeypatch.setattr(check, "multihost_utils", types.SimpleNamespace(process_allgather=gather))
    _, lines = problems(MODEL)
    assert len(lines) == 1 and PALLAS in lines[0] and "another process" in lines[0]
    assert chosen() == "xla"
