"""Every program of the project is lowered for NVIDIA GPUs and for TPUs, without either.

Each config file under configs/ is shrunk to one small layer and its train, evaluation and prediction
programs are lowered in both dtypes, with dropout and without: what a kernel refuses shows here. Rows have 128
tokens and heads 64 numbers, for which both platforms have fused kernels.
"""

import contextlib
import csv
import functools
import importlib.util
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from support import processes as training_support

from bert_jax import tasks, tokenization
from bert_jax.inference import attention_maps, embedding, fill_mask
from bert_jax.kernels import platform
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.masking import MaskingOptions
from bert_jax.parallel import sharding
from bert_jax.runs import benchmark
from bert_jax.settings import config_files, defaults
from bert_jax.tasks.base import family
from bert_jax.tasks.rows import batches, packing
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.state import TrainState
from bert_jax.training.step import make_eval_step, make_train_step

LENGTH, BATCH = 128, 8
SMALL = dict(
    hidden_size=128,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=LENGTH,
)
DEVICES = {
    "cuda": AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="gpu"),
    "tpu": AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu"),
}
DTYPES = ("bfloat16", "float32")
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
NO_DROPOUT = dict.fromkeys(DROPOUT, 0.0)
ARGUMENTS = {"glue": "mrpc", "large_lamb": "phase1", "squad": "v1"}  # of configs that need one
on_both = pytest.mark.parametrize("accelerator", DEVICES)


@pytest.fixture(autouse=True)
def cudnn_is_there(monkeypatch):
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)


@contextlib.contextmanager
def devices_of(accelerator):
    """A mesh of one device of this kind, which need not be attached."""
    mesh = AbstractMesh(
        (1, 1, 1), sharding.AXES, axis_types=(AxisType.Auto,) * 3, abstract_device=DEVICES[accelerator]
    )
    with jax.sharding.use_abstract_mesh(mesh), nn.logical_axis_rules(list(sharding.RULES)):
        yield


def lower(function, accelerator, *args, **static):
    """The text of a program, which holds a fused kernel where `dispatch` has one."""
    with devices_of(accelerator):
        function = function if hasattr(function, "trace") else jax.jit(function)
        return function.trace(*args, **static).lower(lowering_platforms=(accelerator,)).as_text()


def has_kernel(text):
    return "__cudnn$fmha" in text or "tpu_custom_call" in text


def expects_kernel(accelerator, dtype, rate):
    """`rate` is that of dropout on the attention probabilities."""
    return accelerator == "tpu" or (dtype == "bfloat16" and not rate)


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def parameters(task):
    return sharding.unbox(jax.eval_shape(task.init, jax.random.key(0)))


def state(task, optimizer):
    params = parameters(task)
    return TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, jax.eval_shape(optimizer.init, params))


def configs(folder):
    """Names of all config files; one that is added is covered."""
    return [name.partition("/")[2] for name in config_files.names() if name.startswith(f"{folder}/")]


def load(name):
    """A config, with an argument where it needs one."""
    name, argument = config_files.split(name)
    spec = importlib.util.spec_from_file_location("config", config_files.find(name))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    argument = argument or ARGUMENTS.get(name.partition("/")[2])
    return module.get_config(argument) if argument else module.get_config()


@functools.cache
def lower_train_step(accelerator, model, optimizer, accumulate_steps, masking):
    """The text of a pre-training step. Configs that differ in nothing of these share it."""
    task = benchmark.make_task(model, LENGTH, MaskingOptions(strategy=masking, max_predictions=20))
    update, schedule = make_optimizer(ml_collections.ConfigDict(json.loads(optimizer)), 100)
    batch = abstract(benchmark.synthetic_batch("packed", BATCH, LENGTH, model.vocab_size))
    step = make_train_step(task, update, schedule, accumulate_steps)
    return lower(step, accelerator, state(task, update), batch, np.uint32(0))


@functools.cache
def lower_evaluation_step(accelerator, model):
    task = benchmark.make_task(model, LENGTH)
    batch = abstract(benchmark.synthetic_batch("packed", BATCH, LENGTH, model.vocab_size))
    return lower(make_eval_step(task, 0), accelerator, parameters(task), batch, np.int32(0))


def shrink(fields, **changes):
    """The architecture and the execution of a config, without its size."""
    kept = ("hidden_act", "causal", "attention", "residual", "remat", *DROPOUT)
    return EncoderConfig(**{name: fields[name] for name in kept} | SMALL | {"vocab_size": 100} | changes)


def name_optimizer(fields):
    return json.dumps(fields.to_dict() | dict(learning_rate=1e-3, warmup_steps=10, decay_steps=0))


@on_both
@pytest.mark.parametrize("name", configs("pretrain"))
def test_pretraining(name, accelerator):
    config = load(f"pretrain/{name}")
    fields = config.model.to_dict()
    for dtype in DTYPES:
        model = shrink(fields, dtype=dtype)
        parts, strategy = min(config.accumulate_steps, 2), config.masking.strategy
        text = lower_train_step(accelerator, model, name_optimizer(config.optimizer), parts, strategy)
        rate = model.attention_probs_dropout_prob
        assert has_kernel(text) == expects_kernel(accelerator, dtype, rate)
        # Without dropout what differs between the configs is in no kernel: one optimizer is enough.
        model, optimizer = shrink(fields, dtype=dtype, **NO_DROPOUT), defaults.pretrain().optimizer
        for text in (
            lower_train_step(accelerator, model, name_optimizer(optimizer), 1, "token"),
            lower_evaluation_step(accelerator, model),
        ):
            assert has_kernel(text) == expects_kernel(accelerator, dtype, 0.0)


def write_csv(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def text(first):
    """Longer than a row, so that every row is full."""
    return " ".join(f"word{(first + i) % 95}" for i in range(200))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small training file for every kind of task: {kind: fields of config.data}."""
    folder = tmp_path_factory.mktemp("files")
    numbers = range(2 * BATCH)
    table, tagged, questions = folder / "table.csv", folder / "tagged.jsonl", folder / "questions.jsonl"
    write_csv(
        table,
        ["a", "b", "label", "score", "topics", "c", "right"],
        [
            [
                text(i),
                text(i + 1),
                "yes" if i % 2 else "no",
                i / 10,
                "x" if i % 2 else "x;y",
                text(i + 2),
                i % 2,
            ]
            for i in numbers
        ],
    )
    words = [f"word{i % 95}" for i in range(200)]
    tags = ["B-PER" if i % 2 else "O" for i in range(200)]
    tagged.write_text("".join(json.dumps({"words": words, "tags": tags}) + "\n" for _ in numbers))
    answers = {"text": ["word3"], "answer_start": [text(0).index("word3")]}
    row = {"context": text(0), "question": "word1 word2", "answers": answers}
    questions.write_text("".join(json.dumps(row | {"id": str(i)}) + "\n" for i in numbers))
    return {
        "classification": dict(train=str(table), text_a="a", label="label"),
        "pair": dict(train=str(table), text_a="a", text_b="b", label="label"),
        "regression": dict(train=str(table), text_a="a", label="score"),
        "multilabel": dict(train=str(table), text_a="a", label="topics"),
        "multiple_choice": dict(train=str(table), text_a="a", choices="b,c", label="right"),
        "tagging": dict(train=str(tagged)),
        "question_answering": dict(train=str(questions)),
        "vocabulary": str(training_support.write_vocabulary(folder / "vocab.txt")),
    }


def make_problem(config, files, data, dtype, dropout):
    """(the task, its optimizer and schedule, a batch of training, one of prediction) of a config."""
    config.update(dict(max_length=LENGTH, batch_size=BATCH, init_from="the checkpoint of a frozen encoder"))
    config.data.update(data)
    tokenizer, spec = tokenization.load(files["vocabulary"]), tasks.get(config.task)
    bert = shrink(config.model, dtype=dtype, **({} if dropout else NO_DROPOUT))
    problem, examples = family(spec.kind).from_training_file(config, spec, tokenizer, bert, config.data.train)
    rows = problem.encode(examples)
    update, schedule = make_optimizer(config.optimizer, 100)
    plan = packing.plan(rows, BATCH, 100, 1, problem.bert) if problem.packs and config.pack else None
    train = next(batches.train_batches(rows, BATCH, 0, 0))
    if plan:
        train = next(packing.train_batches(rows, plan, BATCH, 0, 0))
    predicted = next(batches.eval_batches(rows, BATCH))
    return problem.task, problem.optimizer(update), schedule, abstract(train), abstract(predicted)


def check_finetuning(accelerator, make, combinations):
    for dtype, dropout in combinations:
        task, optimizer, schedule, batch, predicted = make(dtype, dropout)
        step = make_train_step(task, optimizer, schedule)
        found = lower(step, accelerator, state(task, optimizer), batch, np.uint32(0))
        # A frozen encoder is not trained, and has no dropout.
        rate = 0.1 if dropout and not getattr(task, "layers", ()) else 0.0
        assert has_kernel(found) == expects_kernel(accelerator, dtype, rate)
        found = lower(task.predict, accelerator, parameters(task), predicted)
        assert has_kernel(found) == expects_kernel(accelerator, dtype, 0.0)


# Tasks without a config file of their own: (config, kind of file, fields).
MORE = {
    "regression": ("classification", "regression", {"task": "regression"}),
    "multilabel": ("classification", "multilabel", {"task": "multilabel"}),
    "frozen tagging": ("tagging", "tagging", {"frozen": True, "feature_layers": "-1"}),
    "frozen tagging with a BiLSTM": (
        "tagging",
        "tagging",
        {"frozen": True, "feature_layers": "-1", "head": "bilstm"},
    ),
}


@on_both
@pytest.mark.parametrize("name", [*configs("finetune"), *MORE])
def test_finetuning(name, accelerator, files):
    given, kind, fields = MORE.get(name, (name, None, {}))

    def make(dtype, dropout):
        config = load(f"finetune/{given}")
        config.update(fields | {"head_size": 16})
        data = files[kind or tasks.get(config.task).kind]
        if tasks.get(config.task).columns:  # the files of GLUE
            config.task = "classification"
            data = files["pair"]
        return make_problem(config, files, data, dtype, dropout)

    all_four = [(dtype, dropout) for dtype in DTYPES for dropout in (True, False)]
    check_finetuning(
        accelerator, make, all_four if name == "classification" else [("bfloat16", True), ("float32", False)]
    )


@on_both
@pytest.mark.parametrize("dtype", DTYPES)
def test_programs_of_pretrained_models(accelerator, dtype):
    """fill-mask, embed and attention maps, as `for_inference` has them compute there."""
    with devices_of(accelerator):
        target = platform.target()
    model = EncoderConfig(**SMALL, vocab_size=100).for_inference(target, dtype)
    params = parameters(benchmark.make_task(model, LENGTH))
    ids, one = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32), jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    expected = expects_kernel(accelerator, dtype, 0.0)

    lengths, positions = (jax.ShapeDtypeStruct((BATCH, n), jnp.int32) for n in (1, 4))
    arguments = (params, ids, lengths, positions)
    assert has_kernel(lower(fill_mask.probabilities, accelerator, *arguments, config=model)) == expected

    batch = {"input_ids": ids, "lengths": one, "first_lengths": one}
    for pooling in embedding.POOLINGS:
        layers = (1,) if pooling == "pooler" else (0, 1)
        options = dict(config=model, layers=layers, pooling=pooling, normalize=pooling != "none")
        found = lower(embedding.features, accelerator, params, batch, **options)
        assert has_kernel(found) == expected

    maps = functools.partial(attention_maps.attention_weights, config=attention_maps.computed_as(model))
    assert not has_kernel(lower(maps, accelerator, params["encoder"], batch))


def test_rows_of_an_odd_length_are_trained_on_a_gpu(files):
    """cuDNN has no gradient for them."""
    data = files["classification"]

    def make(dtype, dropout):
        config = load("finetune/classification")
        problem = make_problem(config, files, data, dtype, dropout)
        batch = problem[3] | {"input_ids": jax.ShapeDtypeStruct((BATCH, LENGTH - 1), jnp.int32)}
        return *problem[:3], batch, problem[4]

    task, optimizer, schedule, batch, _ = make("bfloat16", False)
    found = lower(
        make_train_step(task, optimizer, schedule), "cuda", state(task, optimizer), batch, np.uint32(0)
    )
    assert not has_kernel(found)
