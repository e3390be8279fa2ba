"""Kernels are tried on the device before they are trusted; here a CPU plays the TPU, and interprets them."""

import dataclasses
import time
import types

import jax
import jax.numpy as jnp
import pytest
from support import processes

from bert_jax import cli, convert, tokenization
from bert_jax.errors import UserError
from bert_jax.inference import embedding, fill_mask
from bert_jax.kernels import (
    check,
    dispatch,
    platform,
)
from bert_jax.kernels.attention import choose_here
from bert_jax.kernels.gpu import attention as gpu_attention
from bert_jax.kernels.gpu import residual as gpu_residual
from bert_jax.kernels.tpu import blocks, whole_rows
from bert_jax.kernels.tpu import residual as tpu_residual
from bert_jax.models import sizes
from bert_jax.parallel import sharding
from bert_jax.runs import benchmark
from bert_jax.workdir import run_directory

MODEL = sizes.named("tiny", vocab_size=60, dtype="float32")
PALLAS, RESIDUAL, SPLASH = "attention=pallas", "residual=pallas", "attention=splash"
TRITON, TRITON_RESIDUAL = "attention=triton", "residual=triton"


def forget():
    """Forgets all results and enables every kernel again."""
    check._results.clear()
    dispatch._distrusted.clear()


@pytest.fixture(autouse=True)
def tpu(monkeypatch):
    monkeypatch.setattr(platform, "target_platform", lambda: "tpu")
    monkeypatch.setattr(platform, "interprets_kernels", lambda: True)
    forget()
    yield
    forget()


def chosen(requested="auto", length=128):
    return choose_here(requested, "float32", 0.1, length, 2, 64).implementation


def wrong_numbers(monkeypatch):
    """A kernel whose backward pass lost a factor; its forward pass is right."""
    true = whole_rows._backward

    def broken(how, *references):
        true(how, *references)
        references[-5][...] = references[-5][...] * 1.05  # the gradient of the key

    monkeypatch.setattr(whole_rows, "_backward", broken)


def raising(monkeypatch):
    def broken(*arguments):
        raise NotImplementedError("Mosaic failed to compile\nand says much more of it")

    monkeypatch.setattr(whole_rows, "_forward", broken)


def hanging(monkeypatch):
    monkeypatch.setattr(check, "LIMIT_SECONDS", 0.2)

    def late(name, variant):
        time.sleep(1 if name == PALLAS else 0)
        return 0.0

    monkeypatch.setattr(check, "_difference", late)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_that_are_right_are_used(dtype):
    lines = []
    check.ensure(MODEL.replace(dtype=dtype), lines.append)
    assert lines == []
    results = {result.kernel: result for result in check.results()}
    assert set(results) == {PALLAS, SPLASH, RESIDUAL}
    for result in results.values():
        assert result.problem == "" and result.difference < check.BOUND / (2 if dtype == "bfloat16" else 1000)
    assert chosen() == "pallas"


@pytest.mark.long
@pytest.mark.parametrize(
    "break_it, problem",
    [
        (wrong_numbers, "it differs from the XLA form by "),
        (raising, "NotImplementedError: Mosaic failed to compile"),
        (hanging, "it gave no result within 0.2 s"),
    ],
)
def test_a_broken_kernel_gives_one_warning_and_the_xla_form(monkeypatch, break_it, problem):
    break_it(monkeypatch)
    lines = []
    model = MODEL.replace(residual="xla")
    check.ensure(model, lines.append)
    check.ensure(model, lines.append)
    (line,) = lines
    assert line.startswith(f"warning: {PALLAS} failed its check on this device and is not used: {problem}")
    assert "\n" not in line
    assert (
        chosen() == "xla"
        and "pallas failed its check" in choose_here("auto", "float32", 0.1, 128, 2, 64).reason
    )
    # What was asked for by name is refused instead: now, and where it is traced without a check.
    with pytest.raises(
        UserError, match=f"{PALLAS} failed its check on this device .*; use attention=auto, or xla"
    ):
        chosen("pallas")
    forget()
    with pytest.raises(UserError, match=f"{PALLAS} failed its check on this device: .*; use attention=auto"):
        check.ensure(model.replace(attention="pallas"), lines.append)


def test_a_broken_residual_kernel(monkeypatch):
    true = tpu_residual.after_forward

    def broken(words, parameters, x, h, out, total, **options):
        true(words, parameters, x, h, out, total, **options)
        out[0, 7] = jnp.zeros_like(out[0, 7])  # one token of a block

    monkeypatch.setattr(tpu_residual, "after_forward", broken)
    lines = []
    check.ensure(MODEL.replace(attention="xla"), lines.append)
    assert [line.split(" failed")[0] for line in lines] == [f"warning: {RESIDUAL}"]


MODERN = MODEL.replace(position="rotary", norm_placement="pre", norm="rmsnorm", norm_bias=False)


@pytest.mark.long
def test_the_kernels_of_a_model_with_norms_first_and_rotary_positions():
    lines = []
    check.ensure(MODERN, lines.append)
    assert lines == []
    results = {result.kernel: result.difference for result in check.results()}
    assert set(results) == {PALLAS, SPLASH, RESIDUAL}
    assert max(results.values()) < check.BOUND / 1000


@pytest.mark.long
@pytest.mark.parametrize("module, name", [(tpu_residual, "before_backward"), (blocks, "turned")])
def test_broken_kernels_of_such_a_model(monkeypatch, module, name):
    true = getattr(module, name)

    def broken(*arguments, **options):
        if module is blocks:
            return true(*arguments) * 1.05
        true(*arguments, **options)
        references = arguments
        references[-1][...] = references[-1][...] * 1.05  # the gradient of the scale

    monkeypatch.setattr(module, name, broken)
    lines = []
    check.ensure(MODERN, lines.append)
    (line,) = lines
    expected = PALLAS if module is blocks else RESIDUAL
    assert line.startswith(f"warning: {expected} failed its check on this device and is not used: it differs")


@pytest.mark.long
def test_the_kernel_of_a_model_whose_logits_fall_with_the_distance(monkeypatch):
    model, lines = MODEL.replace(position="alibi", residual="xla"), []
    check.ensure(model, lines.append)
    assert lines == [] and {result.kernel for result in check.results()} == {PALLAS}
    forget()
    monkeypatch.setattr(blocks, "slopes_of", lambda how, arrays: ([0.5] * how.heads, arrays[1:]))
    check.ensure(model, lines.append)
    (line,) = lines
    assert line.startswith(f"warning: {PALLAS} failed its check on this device and is not used: it differs")


@pytest.mark.slow
def test_a_kernel_that_is_wrong_in_local_layers_only(monkeypatch):
    local = MODEL.replace(local_window=64, global_every=2, residual="xla")
    lines = []
    check.ensure(local.replace(attention="pallas"), lines.append)
    assert lines == []
    forget()
    true = blocks.masker
    monkeypatch.setattr(
        blocks,
        "masker",
        lambda how, *ids: true(dataclasses.replace(how, window=how.window and how.window - 2), *ids),
    )
    check.ensure(local, lines.append)
    assert [line.split(" failed")[0] for line in lines] == [f"warning: {PALLAS}"]


@pytest.mark.long
def test_windows_that_only_short_rows_may_have():
    """Rows of the check that are too long for the window are left out."""
    model = MODEL.replace(max_position_embeddings=2048, local_window=200, global_every=2, residual="xla")
    check.ensure(model.replace(attention="pallas"), pytest.fail)
    (result,) = check.results()
    assert result.kernel == PALLAS and result.difference < check.BOUND / 1000


@pytest.mark.long
@pytest.mark.parametrize("breaks", ["", "mask", "window"])
def test_the_kernel_of_gpus(monkeypatch, breaks):
    """With dropout, and with a window in local layers."""
    monkeypatch.setattr(platform, "target_platform", lambda: "gpu")
    if breaks == "mask":
        true_words = gpu_attention.place_words
        monkeypatch.setattr(
            gpu_attention, "place_words", lambda place, *words: true_words(place ^ (place > 200), *words)
        )
    if breaks == "window":
        true_logits = gpu_attention._logits
        monkeypatch.setattr(
            gpu_attention,
            "_logits",
            lambda how, *args, **options: true_logits(
                dataclasses.replace(how, window=how.window and how.window - 2), *args, **options
            ),
        )
    local = MODEL.replace(attention="triton", residual="xla", local_window=64, global_every=2)
    variant = check.Variant.of(local)
    assert [kernel.name for kernel in check.candidates(local, variant)] == [TRITON]
    (result,) = check.run([TRITON], variant)
    assert bool(result.problem) == bool(breaks), result


@pytest.mark.parametrize("model", [MODEL, MODERN])
@pytest.mark.parametrize("breaks", ["", "sums", "dropout"])
def test_the_residual_kernels_of_gpus(monkeypatch, model, breaks):
    monkeypatch.setattr(platform, "target_platform", lambda: "gpu")
    if breaks == "sums":  # those of the first features
        true_sums = gpu_residual._write_sums
        monkeypatch.setattr(
            gpu_residual,
            "_write_sums",
            lambda sums, summed: true_sums(sums, [[1.1 * parts[0], *parts[1:]] for parts in summed]),
        )
    if breaks == "dropout":
        true_words = gpu_residual.line_words
        monkeypatch.setattr(
            gpu_residual, "line_words", lambda line, *words: true_words(line ^ (line > 100), *words)
        )
    variant = check.Variant.of(model)
    assert TRITON_RESIDUAL in [kernel.name for kernel in check.candidates(model, variant)]
    (result,) = check.run([TRITON_RESIDUAL], variant)
    drops = model.norm_placement == "post"
    assert bool(result.problem) == (breaks == "sums" or (breaks == "dropout" and drops)), result


def test_not_a_number_is_a_difference(monkeypatch):
    monkeypatch.setattr(check, "_difference", lambda name, variant: jnp.nan)
    assert check.run([PALLAS], check.Variant.of(MODEL))[0].problem


def test_processes_decide_together(monkeypatch):
    monkeypatch.setattr(check, "_difference", lambda name, variant: 0.0)
    monkeypatch.setattr(jax, "process_count", lambda: 2)

    def gather(failed):
        others = failed.copy()
        others[0] = True  # the first kernel, on the other process
        return jnp.stack([failed, others])

    monkeypatch.setattr(check, "multihost_utils", types.SimpleNamespace(process_allgather=gather))
    lines = []
    check.ensure(MODEL, lines.append)
    assert lines == [
        f"warning: {PALLAS} failed its check on this device and is not used: on another process of this run"
    ]
    assert chosen() == "xla"


def test_only_what_a_model_may_use_is_checked(monkeypatch):
    def names(**changes):
        model = MODEL.replace(**changes)
        return [kernel.name for kernel in check.candidates(model, check.Variant.of(model))]

    assert names(attention="xla", residual="xla") == []
    assert names(attention="splash", residual="xla", attention_probs_dropout_prob=0.0) == [SPLASH]
    assert names(hidden_size=312, num_attention_heads=12) == [SPLASH]
    monkeypatch.setattr(platform, "target", lambda: dispatch.Target("gpu", "9.0"))
    assert names(dtype="auto") == ["attention=cudnn", TRITON, TRITON_RESIDUAL]
    assert names(dtype="float32") == [TRITON, TRITON_RESIDUAL]
    monkeypatch.setattr(platform, "target", lambda: dispatch.Target("cpu"))
    assert names() == []


@pytest.mark.long
def test_a_run_warns_once_and_goes_on_in_the_xla_form(monkeypatch, tmp_path, capsys):
    def difference(name, variant):
        if name == PALLAS:
            raise RuntimeError("no such kernel")
        return 0.0

    monkeypatch.setattr(check, "_difference", difference)
    records = processes.write_records(tmp_path / "records")
    command = processes.command(tmp_path / "run", records, steps=6)
    with processes.quick_compilation():
        assert cli.main([*command, "--config.data.eval_split="]) == 0
    captured = capsys.readouterr()
    warning = (
        f"warning: {PALLAS} failed its check on this device and is not used: RuntimeError: no such kernel"
    )
    assert captured.out.count(warning) == 1
    # By the platform, recorded as what it became.
    assert run_directory.read_run(tmp_path / "run")["config"]["model"]["dtype"] == "bfloat16"


def test_prediction_embedding_and_fill_mask_check_too(monkeypatch, tmp_path):
    """Each before it traces anything: the check ends them here."""

    class Checked(Exception):
        pass

    def ensure(model, log):
        raise Checked

    monkeypatch.setattr(check, "ensure", ensure)
    vocabulary = processes.write_vocabulary(tmp_path / "vocab.txt")
    task = benchmark.make_task(MODEL.replace(vocab_size=100), 128)
    params = {"/".join(path): jnp.zeros(leaf.shape) for path, leaf in _leaves(task)}
    model = convert.Model(task.config, params, "pretraining", tokenization.load(vocabulary))
    monkeypatch.setattr(convert, "load", lambda path, log: model)
    with pytest.raises(Checked):
        fill_mask.MaskFiller("a checkpoint")
    with pytest.raises(Checked):
        embedding.Embedder(model)
    with pytest.raises(Checked):
        benchmark.time_train_step(task, None, {})


def _leaves(task):
    tree = sharding.unbox(jax.eval_shape(task.init, jax.random.key(0)))
    return [([key.key for key in path], leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
