"""Digests of parameters and of lowered programs, for every config file."""

import contextlib
import csv
import functools
import importlib.util
import json
import os
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from support import processes, program_digests

from bert_jax import tasks, tokenization
from bert_jax.inference import attention_maps, embedding, fill_mask
from bert_jax.kernels import platform
from bert_jax.models.config import from_dict
from bert_jax.models.heads.pooling import POOLINGS
from bert_jax.parallel import sharding
from bert_jax.runs import benchmark
from bert_jax.settings import config_files, pretrain_config
from bert_jax.tasks import fields as task_fields
from bert_jax.tasks.embedding import EmbeddingTask, LateInteractionTask
from bert_jax.tasks.multiple_choice import MultipleChoiceTask, RerankingTask
from bert_jax.tasks.question_answering import QuestionAnsweringTask
from bert_jax.tasks.rows import batches, packing
from bert_jax.tasks.tagging import TaggingTask
from bert_jax.tasks.text import MultiLabel, TextClassification, TextRegression
from bert_jax.training import optimizers
from bert_jax.training.flops import RowFlops
from bert_jax.training.optimizers import finite_check, make_optimizer
from bert_jax.training.state import TrainState, abstract_state
from bert_jax.training.step import make_eval_step, make_train_step

LENGTH, BATCH = 128, 8
# One small layer. Both platforms have fused kernels for its rows of 128 tokens and heads of size 64.
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
# Arguments of configs that need one; some configs have several programs.
ARGUMENTS = {
    "pretrain/base_gpu": ("1", "8"),
    "pretrain/large_lamb": ("phase1", "phase2"),
    "finetune/albert": ("mrpc",),
    "finetune/bilstm": ("mrpc,attention",),
    "finetune/deberta": ("mrpc",),
    "finetune/distilbert": ("mrpc",),
    "finetune/electra": ("mrpc",),
    "finetune/glue": ("stsb", "mnli"),
    "finetune/hour": ("mrpc",),
    "finetune/roberta": ("mrpc",),
    "finetune/squad": ("v1",),
}
# Settings that no config file uses: {name: (config, fields)}.
VARIANTS = {
    "whole words, all layers computed again": (
        "pretrain/base",
        {"masking.strategy": "whole_word", "model.remat": "full", "accumulate_steps": 2},
    ),
    "spans, left to right, products kept": (
        "pretrain/base",
        {"masking.strategy": "span", "model.remat": "dots", "model.causal": True},
    ),
    "LAMB without correction, constant rate": (
        "pretrain/tiny",
        {"optimizer.name": "lamb_uncorrected", "optimizer.schedule": "constant"},
    ),
}
# Tasks without a config file: {name: (config, kind of file, fields)}.
_FROZEN = {"frozen": True, "feature_layers": "-1"}
MORE = {
    "regression": ("classification", "regression", {"task": "regression"}),
    "multilabel": ("classification", "multilabel", {"task": "multilabel"}),
    "frozen tagging": ("tagging", "tagging", _FROZEN),
    "frozen tagging with a BiLSTM": ("tagging", "tagging", _FROZEN | {"head": "bilstm"}),
}
# The files of each class of tasks.
_FILES = {
    TextClassification: "classification",
    TextRegression: "regression",
    MultiLabel: "multilabel",
    MultipleChoiceTask: "multiple_choice",
    TaggingTask: "tagging",
    QuestionAnsweringTask: "question_answering",
    EmbeddingTask: "embedding",
    LateInteractionTask: "embedding",
    RerankingTask: "reranking",
}


def lower(function, accelerator, *args):
    """Returns the jax.stages.Lowered of a program for one "cuda" or "tpu" device, with the fused kernels that
    `dispatch` chooses."""
    mesh = AbstractMesh(
        (1, 1, 1), sharding.AXES, axis_types=(AxisType.Auto,) * 3, abstract_device=DEVICES[accelerator]
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
        stack.enter_context(nn.logical_axis_rules(list(sharding.RULES)))
        stack.enter_context(mock.patch.object(cudnn, "check_cudnn_version", return_value=91000))
        return jax.jit(function).trace(*args).lower(lowering_platforms=(accelerator,))


def _abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def _parameters(task):
    return sharding.unbox(jax.eval_shape(task.init_model, jax.random.key(0)))


def config_names(folder):
    """Returns every config of a folder with each of its arguments; new configs are included."""
    return [
        f"{name}:{argument}" if len(ARGUMENTS.get(name, ())) > 1 else name
        for name in config_files.names()
        if name.startswith(f"{folder}/")
        for argument in ARGUMENTS.get(name, ("",))
    ]


def load(name):
    """Returns a config, with an argument and a teacher if it needs them."""
    name, argument = config_files.split(name)
    spec = importlib.util.spec_from_file_location("config", config_files.find(name))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    argument = argument or ARGUMENTS.get(name, ("",))[0]
    config = module.get_config(argument) if argument else module.get_config()
    if config.distillation.get("init_layers"):
        config.distillation.teacher = "a teacher"
    return config


def _shrink(fields, **changes):
    """Returns the model config with a small size and its other fields unchanged."""
    return from_dict(dict(fields) | SMALL | {"vocab_size": 100} | changes)


def _text(first):
    """Returns a text longer than a row, so that every row is full."""
    return " ".join(f"word{(first + i) % 95}" for i in range(200))


def write_files(folder):
    """Writes a small training file for every kind of task; returns {kind: fields of config.data}."""
    numbers = range(2 * BATCH)
    paths = table, tagged, questions = [folder / name for name in ("table.csv", "tags.jsonl", "squad.jsonl")]
    with open(table, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "label", "score", "topics", "c", "right", "three"])
        for i in numbers:
            label, topics, three = ("no", "yes")[i % 2], ("x;y", "x")[i % 2], "abc"[i % 3]
            texts = [_text(i + j) for j in range(3)]
            writer.writerow([*texts[:2], label, i / 10, topics, texts[2], i % 2, three])
    words, tags = [f"word{i % 95}" for i in range(200)], ["B-PER" if i % 2 else "O" for i in range(200)]
    tagged.write_text("".join(json.dumps({"words": words, "tags": tags}) + "\n" for _ in numbers))
    answers = {"text": ["word3"], "answer_start": [_text(0).index("word3")]}
    row = {"context": _text(0), "question": "word1 word2", "answers": answers}
    questions.write_text("".join(json.dumps(row | {"id": str(i)}) + "\n" for i in numbers))
    table, tagged, questions = map(str, paths)
    return {
        "classification": dict(train=table, text_a="a", label="label"),
        "pair": dict(train=table, text_a="a", text_b="b", label="label"),
        "three classes": dict(train=table, text_a="a", text_b="b", label="three"),
        "regression": dict(train=table, text_a="a", label="score"),
        "pair of a regression": dict(train=table, text_a="a", text_b="b", label="score"),
        "multilabel": dict(train=table, text_a="a", label="topics"),
        "multiple_choice": dict(train=table, text_a="a", choices="b,c", label="right"),
        "embedding": dict(train=table, text_a="a", text_b="b"),
        "reranking": dict(train=table, text_a="a", text_b="b", negatives="c"),
        "tagging": dict(train=tagged),
        "question_answering": dict(train=questions),
        "vocabulary": str(processes.write_vocabulary(folder / "vocab.txt")),
    }


def _finetuning_config(name, files):
    """Returns (config, fields of its data) for a config under finetune/ or in MORE."""
    given, kind, fields = MORE.get(name, (name, None, {}))
    config = load(f"finetune/{given}")
    config.update(fields | {"head_size": 16, "encoder_size": 16})
    config.optimizer.warmup_steps = min(config.optimizer.warmup_steps, 10)  # of 100 steps
    spec = tasks.get(config.task)
    if spec.columns:  # the files of GLUE
        is_regression = spec.task is TextRegression
        kind = "pair of a regression" if is_regression else "three classes" if "mnli" in name else "pair"
        config.task = "regression" if is_regression else "classification"
    return config, files[kind or _FILES[spec.task]]


def _make_problem(config, files, data, bert):
    """Returns (task, optimizer, schedule, training batch, prediction batch) for a config."""
    config.update(
        dict(max_seq_length=LENGTH, batch_size=BATCH, init_from="the checkpoint of a frozen encoder")
    )
    config.data.update(data)
    config = task_fields.of_run(config)
    tokenizer, spec = tokenization.load(files["vocabulary"]), tasks.get(config.task)
    task = spec.task(task_fields.of_task(config), spec, None, tokenizer, bert)
    rows = task.encode(task.read_training(config.data.train))
    objective = optimizers.freeze(task.objective(), task.freeze, config.optimizer.freeze)
    update, schedule = make_optimizer(config.optimizer, 100, objective)
    if getattr(task.config, "pack", False):
        plan = packing.plan(rows, BATCH, 100, 1, RowFlops.of(task.objective()))
        train = next(packing.train_batches(rows, plan, BATCH, 0, 0))
    else:
        train = next(batches.train_batches(rows, BATCH, 0, 0))
    lengths = batches.bucket_lengths(rows.group_lengths, BATCH, rows.max_seq_length)
    predicted = batches.make_batch(rows, batches.eval_order(rows, BATCH)[0], lengths)
    return objective, update, schedule, _abstract(train), _abstract(predicted)


def _digest(lowered):
    return program_digests.digest(lowered.compiler_ir())


def accelerator_programs(accelerator, files):
    """Returns {program: digest} of some programs with the kernels of an accelerator."""
    found = {}

    def add(name, function, *args):
        found[f"for {accelerator}, {name}"] = _digest(lower(function, accelerator, *args))

    def add_train_step(name, task, optimizer, schedule, batch):
        params = sharding.unbox(jax.eval_shape(task.init, jax.random.key(0)))
        count = jax.ShapeDtypeStruct((), jnp.int32)
        moments = jax.eval_shape(optimizer.init, params)
        state = TrainState(count, params, moments, frozen=sharding.unbox(task.frozen()), skipped=count)
        step = make_train_step(task, optimizer, schedule)
        add(f"{name}: train step", step, state, batch, np.uint32(0))

    for name in ("pretrain/base", "pretrain/base_gpu", "pretrain/modernbert"):
        config = load(name)
        task = benchmark.make_masked_lm(_shrink(config.model, dtype="bfloat16"), LENGTH)
        made = make_optimizer(pretrain_config.pretraining(config).optimizer, config.steps, task)
        batch = _abstract(benchmark.synthetic_batch("packed", BATCH, LENGTH, 100))
        add_train_step(name, task, *made, batch)
    config, data = _finetuning_config("classification", files)
    bert = _shrink(config.model, dtype="bfloat16", **NO_DROPOUT)
    task, *made, batch, predicted = _make_problem(config, files, data, bert)
    add_train_step("finetune/classification", task, *made, batch)
    add("finetune/classification: prediction", task.predict, _parameters(task), predicted)
    return found


# The rest is for the CPU, with eight devices as set in conftest.py.


@functools.cache
def mesh():
    """Returns a mesh in which every axis splits something, so that programs show every sharding."""
    return sharding.make_mesh(data=2, fsdp=2, tensor=2)


def _cpu_model(fields, **changes):
    """Returns a model with two layers, to distinguish work per layer from work that is done once."""
    return _shrink(fields, num_hidden_layers=2, **changes).resolve(platform.target())


def _train_step(task, optimizer, schedule, config, batch, accumulate_steps=1):
    check, limit = finite_check(config.optimizer), config.max_skipped_steps
    step = make_train_step(task, optimizer, schedule, accumulate_steps, check, limit)
    state = abstract_state(task, optimizer, mesh())
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return _digest(sharding.jit_train_step(step, mesh(), shardings).lower(state, batch, np.uint32(0)))


_train_steps: dict[str, str] = {}


def pretraining_programs(name):
    """Returns {program: digest} for a config under pretrain/ or in VARIANTS."""
    given, fields = VARIANTS.get(name, (name, {}))
    config = load(given)
    config.update_from_flattened_dict(fields)
    config.model.update(SMALL)
    config.model.position_buckets = min(config.model.position_buckets, LENGTH // 4)
    pretraining = pretrain_config.pretraining(config)
    rows = _abstract(benchmark.synthetic_batch("packed", 2 * BATCH, LENGTH, 100))

    def prepare(**changes):
        model = _cpu_model(config.model, **changes)
        length = min(LENGTH, model.max_seq_length)  # RoBERTa's first two positions are not used
        task = benchmark.make_masked_lm(model, length, pretraining.masking.options(LENGTH))
        return task, *make_optimizer(pretraining.optimizer, config.steps, task)

    def train_step(**changes):
        return _train_step(*prepare(**changes), config, rows, min(config.accumulate_steps, 2))

    key = str([config.steps, config.accumulate_steps, config.model, config.optimizer, config.masking])
    if key not in _train_steps:  # configs that differ only in size share it
        _train_steps[key] = train_step()
    found = {f"{name}: train step": _train_steps[key]}
    if name in ("pretrain/base", "pretrain/large_lamb:phase1"):
        found[f"{name}: train step without dropout"] = train_step(**NO_DROPOUT)
    if name in ("pretrain/base", "pretrain/tiny"):
        task, optimizer, _ = prepare()
        state = abstract_state(task, optimizer, mesh())
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
        step = sharding.jit_eval_step(make_eval_step(task), mesh(), shardings)
        lowered = step.lower(state.params, rows, np.int32(0), np.uint32(config.seed))
        found[f"{name}: evaluation step"] = _digest(lowered)
    return found


def finetuning_programs(name, files):
    """Returns {program: digest} for a config under finetune/ or in MORE. An evaluation is a scored
    prediction."""
    config, data = _finetuning_config(name.removeprefix("finetune/"), files)
    task, *made, batch, predicted = _make_problem(config, files, data, _cpu_model(config.model))
    replicated = jax.sharding.NamedSharding(mesh(), jax.sharding.PartitionSpec())
    with sharding.on_mesh(mesh()):
        predict = jax.jit(task.predict, out_shardings=replicated).lower(_parameters(task), predicted)
    train = _train_step(task, *made, config, batch)
    return {f"{name}: train step": train, f"{name}: prediction": _digest(predict)}


def inference_programs():
    """Returns {program: digest} of fill-mask, embed and attention maps, with the model of `for_inference`."""
    model = from_dict(SMALL | {"vocab_size": 100}).for_inference(platform.target(), "auto")
    params = _parameters(benchmark.make_masked_lm(model, LENGTH))
    ids, one = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32), jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    lengths, positions = (jax.ShapeDtypeStruct((BATCH, n), jnp.int32) for n in (1, 4))

    def probabilities(params, ids, lengths, positions):
        return jax.nn.softmax(fill_mask.logits_at(params, ids, lengths, positions, config=model), axis=-1)

    batch = {"input_ids": ids, "lengths": one, "first_lengths": one}
    plain = model.replace(dtype="float32", attention="xla", remat="none")
    with sharding.on_mesh(mesh()):
        found = {
            "fill-mask": jax.jit(probabilities).lower(params, ids, lengths, positions),
            "attention maps": attention_maps.attention_weights.lower(params, batch, config=plain),
        }
        for pooling in POOLINGS:
            layers = (1,) if pooling == "pooler" else (0, 1)
            options = dict(config=model, layers=layers, pooling=pooling, normalize=pooling != "none")
            found[f"embed {pooling}"] = embedding.features.lower(params, batch, **options)
    return {name: _digest(lowered) for name, lowered in found.items()}


def programs(files):
    """Returns {group: function that returns {program: digest}}, with a group per config and variant."""
    groups = {
        name: functools.partial(pretraining_programs, name) for name in (*config_names("pretrain"), *VARIANTS)
    }
    groups |= {
        name: functools.partial(finetuning_programs, name, files)
        for name in (*config_names("finetune"), *MORE)
    }
    groups |= {f"for {name}": functools.partial(accelerator_programs, name, files) for name in DEVICES}
    return groups | {"inference": inference_programs}


def _describe(boxed):
    """Returns the digest and the number of lines "path dtype[shape] split over"."""
    lines = []
    is_leaf = lambda leaf: isinstance(leaf, nn.Partitioned)  # noqa: E731
    for path, leaf in jax.tree_util.tree_leaves_with_path(boxed, is_leaf=is_leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        split = sharding.partition_spec(leaf.names, leaf.value.shape, mesh())
        lines.append(f"{name} {leaf.value.dtype}{list(leaf.value.shape)} {split}")
    return f"{program_digests.of_text(os.linesep.join(lines))} {len(lines)}"


def parameters(files):
    """Returns {config: digest of the paths, shapes, dtypes and shardings of its parameters}. Configs under
    pretrain/ have their real size, configs under finetune/ have two small layers."""
    found, described = {}, {}
    for name in dict.fromkeys(name.partition(":")[0] for name in config_names("pretrain")):
        fields = load(name).model.to_dict()
        model = from_dict(fields | {"vocab_size": fields["vocab_size"] or 30522, "scan_unroll": 1})
        if model not in described:
            init = benchmark.make_masked_lm(model, LENGTH).init
            described[model] = _describe(jax.eval_shape(init, jax.random.key(0)))
        found[name] = described[model]
    for name in ("classification", "squad", "tagging", "multiple_choice", *MORE):
        config, data = _finetuning_config(name, files)
        task = _make_problem(config, files, data, _cpu_model(config.model))[0]
        found[f"finetune/{name}"] = _describe(jax.eval_shape(task.init_model, jax.random.key(0)))
    return found
