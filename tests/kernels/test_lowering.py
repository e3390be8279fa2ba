"""Every program of the project is lowered for NVIDIA GPUs and for TPUs, without either.

Each config file under configs/ is shrunk to one small layer and its train and prediction programs are lowered
in bfloat16; those of each model also in float32 and without dropout, and its evaluation: what a kernel
refuses shows here. Rows have 128 tokens and heads 64 numbers, for which both platforms have fused kernels.
"""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import lowering
from support.lowering import (
    BATCH,
    DEVICES,
    LENGTH,
    MORE,
    NO_DROPOUT,
    abstract,
    configs,
    load,
    parameters,
    state,
)

from bert_jax.kernels import platform
from bert_jax.objectives.baselines import BilstmClassification
from bert_jax.objectives.masking import MaskingOptions
from bert_jax.runs import benchmark
from bert_jax.settings import defaults
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.step import make_eval_step, make_train_step

DTYPES = ("bfloat16", "float32")
on_both = pytest.mark.parametrize("accelerator", DEVICES)


def lower(function, accelerator, *args, **static):
    """The text of a program."""
    return lowering.lower(function, accelerator, *args, **static).as_text()


CALLS = {
    "cudnn": "__cudnn$fmha",
    "triton attention": ', name = "_attention_forward"',
    "triton residual": ', name = "after_forward"',
    "pallas attention": 'kernel_name = "_forward"',
    "pallas residual": 'kernel_name = "after_forward"',
}


def kernels(text):
    """The fused kernels in the text of a program."""
    return {name for name, call in CALLS.items() if call in text}


def float32_products(text):
    """The shapes of the operands of products of float32 arrays in the text of a program."""
    found = re.findall(r"stablehlo.dot_general.*: \(tensor<([0-9x]+)xf32>, tensor<([0-9x]+)xf32>\)", text)
    return [tuple(map(int, shape.split("x"))) for shapes in found for shape in shapes]


def expected_kernels(accelerator, dtype, rate):
    """`rate` is that of dropout on the attention probabilities."""
    if accelerator == "tpu":
        return {"pallas attention", "pallas residual"}
    attention = "cudnn" if dtype == "bfloat16" and not rate else "triton attention"
    return {attention, "triton residual"}


@functools.cache
def lower_train_step(accelerator, model, optimizer, accumulate_steps, masking):
    """The text of a pre-training step. Configs that differ in nothing of these share it."""
    task = benchmark.make_task(model, LENGTH, MaskingOptions(strategy=masking, max_predictions=20))
    update, schedule = make_optimizer(OptimizerConfig(**json.loads(optimizer)), 100, task)
    batch = abstract(benchmark.synthetic_batch("packed", BATCH, LENGTH, model.vocab_size))
    step = make_train_step(task, update, schedule, accumulate_steps)
    return lower(step, accelerator, state(task, update), batch, np.uint32(0))


@functools.cache
def lower_evaluation_step(accelerator, model):
    task = benchmark.make_task(model, LENGTH)
    batch = abstract(benchmark.synthetic_batch("packed", BATCH, LENGTH, model.vocab_size))
    return lower(make_eval_step(task), accelerator, parameters(task), batch, np.int32(0), np.uint32(0))


def shrink(fields, **changes):
    """The architecture of a config and the implementations that it chooses, without its size."""
    kept = ("hidden_act", "causal", "attention", "residual", "remat", *NO_DROPOUT)
    return lowering.shrink({name: fields[name] for name in kept}, **changes)


def name_optimizer(fields):
    """An optimizer without its numbers and its schedule, which is arithmetic of scalars."""
    numbers = dict(learning_rate=1e-3, warmup_steps=10, warmup_fraction=0.0, decay_steps=0)
    chosen = {name: fields[name] for name in ("name", "args")}
    return json.dumps(defaults.pretrain().optimizer.to_dict() | numbers | chosen)


@pytest.mark.long
@on_both
@pytest.mark.parametrize("name", configs("pretrain"))
def test_pretraining(name, accelerator):
    config = load(f"pretrain/{name}")
    fields, optimizer = config.model.to_dict(), name_optimizer(defaults.pretrain().optimizer)
    model = shrink(fields, dtype="bfloat16")
    parts, strategy = min(config.accumulate_steps, 2), config.masking.strategy
    text = lower_train_step(accelerator, model, name_optimizer(config.optimizer), parts, strategy)
    assert kernels(text) == expected_kernels(accelerator, "bfloat16", model.attention_probs_dropout_prob)
    if accelerator == "cuda":  # float32 products would take twice as long or more
        assert all(model.vocab_size not in shape for shape in float32_products(text))
    # What else differs between the configs is in no kernel, and neither are activations.
    fields["hidden_act"] = "gelu"
    for dtype, dropout in (("float32", {}), ("float32", NO_DROPOUT), ("bfloat16", NO_DROPOUT)):
        model = shrink(fields, dtype=dtype, **dropout)
        text = lower_train_step(accelerator, model, optimizer, 1, "token")
        rate = model.attention_probs_dropout_prob
        assert kernels(text) == expected_kernels(accelerator, dtype, rate)
        if not rate:
            text = lower_evaluation_step(accelerator, model)
            assert kernels(text) == expected_kernels(accelerator, dtype, 0.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small training file for every kind of task: {kind: fields of config.data}."""
    return lowering.write_files(tmp_path_factory.mktemp("files"))


def make_problem(config, files, data, dtype, dropout):
    bert = shrink(config.model, dtype=dtype, **({} if dropout else NO_DROPOUT))
    return lowering.make_problem(config, files, data, bert)


@functools.cache
def checked():
    """The fine-tuning programs that are lowered already."""
    return set()


def check_finetuning(accelerator, problem, dtype, predicts):
    task, optimizer, schedule, batch, predicted = problem
    step = make_train_step(task, optimizer, schedule)
    found = lower(step, accelerator, state(task, optimizer), batch, np.uint32(0))
    # A frozen encoder is not trained, and has no dropout.
    rate = 0.0 if task.frozen() else task.config.attention_probs_dropout_prob
    attends = not isinstance(task, BilstmClassification)
    assert kernels(found) == (expected_kernels(accelerator, dtype, rate) if attends else set())
    if predicts:
        found = lower(task.predict, accelerator, parameters(task), predicted)
        assert kernels(found) == (expected_kernels(accelerator, dtype, 0.0) if attends else set())


@pytest.mark.long
@on_both
@pytest.mark.parametrize("name", [*configs("finetune"), *MORE])
def test_finetuning(name, accelerator, files):
    all_four = [(dtype, dropout) for dtype in DTYPES for dropout in (True, False)]
    # The kernels are chosen by dtype and dropout, whatever the task.
    for dtype, dropout in all_four if name == "classification" else [("bfloat16", True)]:
        config, data = lowering.finetuning_config(name, files)
        problem = make_problem(config, files, data, dtype, dropout)
        # Configs of one task and one model differ in the optimizer, which is in no kernel.
        what = accelerator, config.task, name in MORE and name, problem[0].config
        if what not in checked():
            check_finetuning(accelerator, problem, dtype, predicts=dropout)
            checked().add(what)


@pytest.mark.long
@on_both
@pytest.mark.parametrize("dtype", DTYPES)
def test_programs_of_pretrained_models(accelerator, dtype):
    """fill-mask, embed and attention maps, as `for_inference` has them compute there."""
    with lowering.devices_of(accelerator):
        target = platform.target()

    def lower(function, *args, **static):
        return lowering.lower(function, accelerator, *args, **static)

    for name, lowered in lowering.lower_pretrained_models(lower, target, dtype).items():
        expected = set() if name == "attention maps" else expected_kernels(accelerator, dtype, 0.0)
        assert kernels(lowered.as_text()) == expected, name


@pytest.mark.long
def test_rows_of_an_odd_length_are_trained_on_a_gpu(files):
    """cuDNN has no gradient for them, and Triton no blocks."""
    data = files["classification"]
    task, optimizer, schedule, batch, _ = make_problem(
        load("finetune/classification"), files, data, "bfloat16", False
    )
    batch |= {"input_ids": jax.ShapeDtypeStruct((BATCH, LENGTH - 1), jnp.int32)}
    step = make_train_step(task, optimizer, schedule)
    assert not kernels(lower(step, "cuda", state(task, optimizer), batch, np.uint32(0)))
