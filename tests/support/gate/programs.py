"""Digests of lowered programs and of parameters, for every config."""

import functools
import os

from support import lowering, program_digests

# Arguments of configs of which one is not enough.
ARGUMENTS = {
    "pretrain/base_gpu": ("1", "8"),
    "pretrain/large_lamb": ("phase1", "phase2"),
    "finetune/glue": ("stsb", "mnli"),
}

# Values that no config file has: {name: (config, fields)}.
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


def _set(config, fields):
    for name, value in fields.items():
        *path, last = name.split(".")
        part = config
        for each in path:
            part = part[each]
        part[last] = value


def config_names(folder):
    """Every config of a folder, with each of its arguments."""
    return [
        f"{folder}/{name}:{argument}" if argument else f"{folder}/{name}"
        for name in lowering.configs(folder)
        for argument in ARGUMENTS.get(f"{folder}/{name}", ("",))
    ]


def pretraining_programs(name):
    """{program: digest} of a config under pretrain/, or of one of VARIANTS."""
    given, fields = VARIANTS.get(name, (name, {}))
    config = lowering.load(given)
    _set(config, fields)
    config.model.update(lowering.SMALL)
    key = str([config.steps, config.accumulate_steps, config.model, config.optimizer, config.masking])
    if key not in _train_steps:  # configs that differ in their size alone share it
        _train_steps[key] = _digest(lowering.lower_pretraining_step(config))
    found = {f"{name}: train step": _train_steps[key]}
    if name in ("pretrain/base", "pretrain/large_lamb:phase1"):
        without = lowering.lower_pretraining_step(config, **lowering.NO_DROPOUT)
        found[f"{name}: train step without dropout"] = _digest(without)
    if name in ("pretrain/base", "pretrain/tiny"):
        found[f"{name}: evaluation step"] = _digest(lowering.lower_pretraining_evaluation(config))
    return found


_train_steps = {}


def finetuning_programs(name, files):
    """{program: digest} of a config under finetune/, or of one of `lowering.MORE`."""
    config, data = lowering.finetuning_config(name.removeprefix("finetune/"), files)
    train, predict = lowering.lower_finetuning(config, files, data)
    return {f"{name}: train step": _digest(train), f"{name}: prediction": _digest(predict)}


def accelerator_programs(accelerator, files):
    """{program: digest} of some programs with the kernels of an accelerator."""
    lowered = lowering.lower_for(accelerator, files)
    return {f"for {accelerator}, {name}": _digest(each) for name, each in lowered.items()}


def inference_programs():
    return {name: _digest(lowered) for name, lowered in lowering.lower_inference().items()}


def _digest(lowered):
    return program_digests.digest(lowered.compiler_ir())


def parameters(files):
    """{config: digest of the paths, shapes, dtypes and shardings of its parameters}."""
    found = {
        name: lowering.describe_parameters(lowering.load(name))
        for name in (f"pretrain/{each}" for each in lowering.configs("pretrain"))
    }
    for name in ("classification", "squad", "tagging", "multiple_choice", *lowering.MORE):
        config, data = lowering.finetuning_config(name, files)
        found[f"finetune/{name}"] = lowering.describe_finetuned_parameters(config, files, data)
    return {
        name: f"{program_digests.of_text(os.linesep.join(lines))} {len(lines)}"
        for name, lines in found.items()
    }


def programs(files):
    """{group: function that returns {program: digest}}, a group for each config and each of its variants."""
    groups = {name: functools.partial(pretraining_programs, name) for name in config_names("pretrain")}
    groups |= {name: functools.partial(pretraining_programs, name) for name in VARIANTS}
    groups |= {
        name: functools.partial(finetuning_programs, name, files)
        for name in (*config_names("finetune"), *lowering.MORE)
    }
    groups |= {
        f"for {accelerator}": functools.partial(accelerator_programs, accelerator, files)
        for accelerator in lowering.DEVICES
    }
    return groups | {"inference": inference_programs}
