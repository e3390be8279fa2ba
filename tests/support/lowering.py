"""The programs of every config file, lowered for a platform whose devices need not be attached."""

import contextlib
import csv
import functools
import importlib.util
import json
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from support import processes

from bert_jax import tasks, tokenization
from bert_jax.inference import attention_maps, embedding, fill_mask
from bert_jax.kernels import platform
from bert_jax.models.config import from_dict
from bert_jax.parallel import sharding
from bert_jax.runs import benchmark
from bert_jax.settings import config_files, pretrain_config
from bert_jax.tasks import fields as task_fields
from bert_jax.tasks.embedding import EmbeddingTask, LateInteractionTask
from bert_jax.tasks.multiple_choice import MultipleChoiceTask
from bert_jax.tasks.question_answering import QuestionAnsweringTask
from bert_jax.tasks.reranking import RerankingTask
from bert_jax.tasks.rows import batches, packing
from bert_jax.tasks.tagging import TaggingTask
from bert_jax.tasks.text import MultiLabel, TextClassification, TextRegression
from bert_jax.tasks.xnli.task import Xnli
from bert_jax.training import optimizers
from bert_jax.training.flops import RowFlops
from bert_jax.training.optimizers import finite_check, make_optimizer
from bert_jax.training.state import TrainState, abstract_state
from bert_jax.training.step import make_eval_step, make_train_step

LENGTH, BATCH = 128, 8
# One small layer. Rows have 128 tokens and heads 64 numbers, for which both platforms have fused kernels.
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
NO_DROPOUT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
ARGUMENTS = {  # of configs that need one
    "pretrain/large_lamb": "phase1",
    "finetune/albert": "mrpc",
    "finetune/bilstm": "mrpc,attention",
    "finetune/distilbert": "mrpc",
    "finetune/electra": "mrpc",
    "finetune/glue": "mrpc",
    "finetune/hour": "mrpc",
    "finetune/roberta": "mrpc",
    "finetune/squad": "v1",
}

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


@contextlib.contextmanager
def devices_of(accelerator):
    """A mesh of one device of this kind, which need not be attached."""
    mesh = AbstractMesh(
        (1, 1, 1), sharding.AXES, axis_types=(AxisType.Auto,) * 3, abstract_device=DEVICES[accelerator]
    )
    with jax.sharding.use_abstract_mesh(mesh), nn.logical_axis_rules(list(sharding.RULES)):
        yield


def lower(function, accelerator, *args, **static):
    """Returns the jax.stages.Lowered of a program for "cuda" or "tpu", which has a fused kernel where
    `dispatch` has one."""
    with devices_of(accelerator), mock.patch.object(cudnn, "check_cudnn_version", return_value=91000):
        function = function if hasattr(function, "trace") else jax.jit(function)
        return function.trace(*args, **static).lower(lowering_platforms=(accelerator,))


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def parameters(task):
    return sharding.unbox(jax.eval_shape(task.init_model, jax.random.key(0)))


def state(task, optimizer):
    params = sharding.unbox(jax.eval_shape(task.init, jax.random.key(0)))
    moments = jax.eval_shape(optimizer.init, params)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    return TrainState(count, params, moments, frozen=sharding.unbox(task.frozen()), skipped=count)


def configs(folder):
    """Names of all config files; one that is added is covered."""
    return [name.partition("/")[2] for name in config_files.names() if name.startswith(f"{folder}/")]


def load(name):
    """A config, with an argument and a teacher where it needs one."""
    name, argument = config_files.split(name)
    spec = importlib.util.spec_from_file_location("config", config_files.find(name))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    argument = argument or ARGUMENTS.get(name)
    config = module.get_config(argument) if argument else module.get_config()
    if config.distillation.get("init_layers"):
        config.distillation.teacher = "a teacher"
    return config


def shrink(fields, **changes):
    """The model of a config with every field but those of its size."""
    return from_dict(dict(fields) | SMALL | {"vocab_size": 100} | changes)


def _write_csv(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def text(first):
    """Longer than a row, so that every row is full."""
    return " ".join(f"word{(first + i) % 95}" for i in range(200))


def write_files(folder):
    """Writes a small training file for every kind of task; returns {kind: fields of config.data}."""
    numbers = range(2 * BATCH)
    table, tagged, questions = folder / "table.csv", folder / "tagged.jsonl", folder / "questions.jsonl"
    _write_csv(
        table,
        ["a", "b", "label", "score", "topics", "c", "right", "three"],
        [
            [
                text(i),
                text(i + 1),
                "yes" if i % 2 else "no",
                i / 10,
                "x" if i % 2 else "x;y",
                text(i + 2),
                i % 2,
                "abc"[i % 3],
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
        "three classes": dict(train=str(table), text_a="a", text_b="b", label="three"),
        "regression": dict(train=str(table), text_a="a", label="score"),
        "pair of a regression": dict(train=str(table), text_a="a", text_b="b", label="score"),
        "multilabel": dict(train=str(table), text_a="a", label="topics"),
        "multiple_choice": dict(train=str(table), text_a="a", choices="b,c", label="right"),
        "embedding": dict(train=str(table), text_a="a", text_b="b"),
        "reranking": dict(train=str(table), text_a="a", text_b="b", negatives="c"),
        "tagging": dict(train=str(tagged)),
        "question_answering": dict(train=str(questions)),
        "vocabulary": str(processes.write_vocabulary(folder / "vocab.txt")),
    }


def finetuning_config(name, files, kind=None):
    """(config, fields of its data) of a config file under finetune/, or of one of MORE."""
    given, of_more, fields = MORE.get(name, (name, None, {}))
    if name == "glue:mnli":
        kind = "three classes"
    config = load(f"finetune/{given}")
    config.update(fields | {"head_size": 16, "encoder_size": 16})
    config.optimizer.warmup_steps = min(config.optimizer.warmup_steps, 10)  # of 100 steps
    spec = tasks.get(config.task)
    data = files[kind or of_more or _FILES[spec.task]]
    if spec.columns:  # the files of GLUE
        kind = kind or ("pair of a regression" if spec.task is TextRegression else "pair")
        config.task = "regression" if spec.task is TextRegression else "classification"
        data = files[kind]
    return config, data


# The files of each class of tasks.
_FILES = {
    TextClassification: "classification",
    TextRegression: "regression",
    MultiLabel: "multilabel",
    MultipleChoiceTask: "multiple_choice",
    TaggingTask: "tagging",
    QuestionAnsweringTask: "question_answering",
    Xnli: "pair",
    EmbeddingTask: "embedding",
    LateInteractionTask: "embedding",
    RerankingTask: "reranking",
}


def make_problem(config, files, data, bert):
    """(the task, its optimizer and schedule, a batch of training, one of prediction) of a config."""
    config.update(
        dict(max_seq_length=LENGTH, batch_size=BATCH, init_from="the checkpoint of a frozen encoder")
    )
    config.data.update(data)
    config = task_fields.of_run(config)
    tokenizer, spec = tokenization.load(files["vocabulary"]), tasks.get(config.task)
    task = spec.task(task_fields.of_task(config), spec, None, tokenizer, bert)
    examples = task.read_training(config.data.train)
    rows = task.encode(examples)
    objective = optimizers.freeze(task.objective(), task.freeze, config.optimizer.freeze)
    update, schedule = make_optimizer(config.optimizer, 100, objective)
    packs = getattr(task.config, "pack", False)
    plan = packing.plan(rows, BATCH, 100, 1, RowFlops.of(task.objective())) if packs else None
    train = next(batches.train_batches(rows, BATCH, 0, 0))
    if plan:
        train = next(packing.train_batches(rows, plan, BATCH, 0, 0))
    predicted = next(batches.eval_batches(rows, BATCH))
    return objective, update, schedule, abstract(train), abstract(predicted)


def lower_pretrained_models(lower, target, dtype):
    """{name: Lowered} of fill-mask, embed and attention maps, as `for_inference` has them compute.

    Args:
        lower: called with a function, its arguments and its static ones by name.
        target: the device's.
    """
    model = from_dict(SMALL | {"vocab_size": 100}).for_inference(target, dtype)
    params = parameters(benchmark.make_task(model, LENGTH))
    ids, one = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32), jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    lengths, positions = (jax.ShapeDtypeStruct((BATCH, n), jnp.int32) for n in (1, 4))

    def probabilities(params, ids, lengths, positions):
        return jax.nn.softmax(fill_mask.logits_at(params, ids, lengths, positions, config=model), axis=-1)

    found = {"fill-mask": lower(probabilities, params, ids, lengths, positions)}
    batch = {"input_ids": ids, "lengths": one, "first_lengths": one}
    for pooling in embedding.POOLINGS:
        layers = (1,) if pooling == "pooler" else (0, 1)
        options = dict(config=model, layers=layers, pooling=pooling, normalize=pooling != "none")
        found[f"embed {pooling}"] = lower(embedding.features, params, batch, **options)
    maps = functools.partial(attention_maps.attention_weights, config=attention_maps.computed_as(model))
    return found | {"attention maps": lower(maps, params["encoder"], batch)}


def lower_for(accelerator, files):
    """{name: Lowered} of some programs with the kernels of "cuda" or "tpu"."""
    found = {}
    for name in ("pretrain/base", "pretrain/base_gpu", "pretrain/modernbert"):
        config = load(name)
        task = benchmark.make_task(shrink(config.model, dtype="bfloat16"), LENGTH)
        optimizer, schedule = make_optimizer(
            pretrain_config.pretraining(config).optimizer, config.steps, task
        )
        batch = abstract(benchmark.synthetic_batch("packed", BATCH, LENGTH, 100))
        step = make_train_step(task, optimizer, schedule)
        found[f"{name}: train step"] = lower(step, accelerator, state(task, optimizer), batch, np.uint32(0))
    config, data = finetuning_config("classification", files)
    bert = shrink(config.model, dtype="bfloat16", **NO_DROPOUT)
    task, optimizer, schedule, batch, predicted = make_problem(config, files, data, bert)
    step = make_train_step(task, optimizer, schedule)
    lowered = lower(step, accelerator, state(task, optimizer), batch, np.uint32(0))
    found["finetune/classification: train step"] = lowered
    lowered = lower(task.predict, accelerator, parameters(task), predicted)
    return found | {"finetune/classification: prediction": lowered}


# What follows is for the processor, on eight devices as conftest.py has them.


@functools.cache
def mesh():
    """Every axis splits something, so that every sharding shows in the programs."""
    return sharding.make_mesh(data=2, fsdp=2, tensor=2)


def cpu_model(fields, **changes):
    """Two layers, so that what is done for every layer is told from what is done once."""
    return shrink(fields, num_hidden_layers=2, **changes).resolve(platform.target())


def _pretraining_task(config, **changes):
    masking = pretrain_config.pretraining(config).masking.options(LENGTH)
    return benchmark.make_task(cpu_model(config.model, **changes), LENGTH, masking)


def _packed_rows():
    return abstract(benchmark.synthetic_batch("packed", 2 * BATCH, LENGTH, 100))


def _lower_train_step(task, optimizer, schedule, config, batch, accumulate_steps=1):
    check, limit = finite_check(config.optimizer), config.max_skipped_steps
    step = make_train_step(task, optimizer, schedule, accumulate_steps, check, limit)
    state = abstract_state(task, optimizer, mesh())
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return sharding.jit_train_step(step, mesh(), shardings).lower(state, batch, np.uint32(0))


def lower_pretraining_step(config, **changes):
    """The train step of a config under pretrain/ with fields of its model changed."""
    task = _pretraining_task(config, **changes)
    optimizer, schedule = make_optimizer(pretrain_config.pretraining(config).optimizer, config.steps, task)
    parts = min(config.accumulate_steps, 2)
    return _lower_train_step(task, optimizer, schedule, config, _packed_rows(), parts)


def lower_pretraining_evaluation(config):
    task = _pretraining_task(config)
    optimizer, _ = make_optimizer(pretrain_config.pretraining(config).optimizer, config.steps, task)
    state = abstract_state(task, optimizer, mesh())
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = sharding.jit_eval_step(make_eval_step(task), mesh(), shardings)
    return step.lower(state.params, _packed_rows(), np.int32(0), np.uint32(config.seed))


def lower_finetuning(config, files, data, **changes):
    """(train step, prediction) of a config under finetune/. An evaluation is a prediction that is scored."""
    task, optimizer, schedule, batch, predicted = make_problem(
        config, files, data, cpu_model(config.model, **changes)
    )
    train = _lower_train_step(task, optimizer, schedule, config, batch)
    replicated = jax.sharding.NamedSharding(mesh(), jax.sharding.PartitionSpec())
    with sharding.on_mesh(mesh()):
        predict = jax.jit(task.predict, out_shardings=replicated).lower(parameters(task), predicted)
    return train, predict


def lower_inference():
    """{name: Lowered} of fill-mask, embed and attention maps."""

    def lower(function, *args, **static):
        with sharding.on_mesh(mesh()):
            function = function if hasattr(function, "lower") else jax.jit(function)
            return function.lower(*args, **static)

    return lower_pretrained_models(lower, platform.target(), "auto")


def describe_parameters(config):
    """Lines "path dtype[shape] split over" of a config's parameters at its real size, under pretrain/."""
    fields = config.model.to_dict()
    return _describe_pretrained(
        from_dict(fields | {"vocab_size": fields["vocab_size"] or 30522, "scan_unroll": 1})
    )


@functools.cache
def _describe_pretrained(model):
    return _describe(jax.eval_shape(benchmark.make_task(model, LENGTH).init, jax.random.key(0)))


def describe_finetuned_parameters(config, files, data):
    """As `describe_parameters`, under finetune/ and with one small layer."""
    task = make_problem(config, files, data, cpu_model(config.model))[0]
    return _describe(jax.eval_shape(task.init_model, jax.random.key(0)))


def _describe(boxed):
    lines = []
    is_leaf = lambda leaf: isinstance(leaf, nn.Partitioned)  # noqa: E731
    for path, leaf in jax.tree_util.tree_leaves_with_path(boxed, is_leaf=is_leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        split = sharding.partition_spec(leaf.names, leaf.value.shape, mesh())
        lines.append(f"{name} {leaf.value.dtype}{list(leaf.value.shape)} {split}")
    return lines
