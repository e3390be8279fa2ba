"""Compiles tiny programs of the project for H100s or TPUs that are not attached.

`python compilations.py CHIP NAME...`, where CHIP is h100, v4, v5e, v5p, v6e or tpu7x. A separate process,
which has to find the compiler of that chip. Prints one line of JSON for each program: the library functions
and kernels that it calls, and the shapes of its collectives.
"""

import collections
import json
import re
import sys
import time

from bert_jax.estimate import hardware

CHIP = sys.argv[1]
# Four chips of one host; a chip of v7 has two devices.
SLICES = {"v4": "2x2x1", "v5e": "2x2", "v5p": "2x2x1", "v6e": "2x2", "tpu7x": "2x2x1"}
(hardware.Slices if CHIP in SLICES else hardware.Hosts).prepare()

import jax  # noqa: E402
import numpy as np  # noqa: E402

from bert_jax.models.config import EncoderConfig  # noqa: E402
from bert_jax.objectives.classification import Classification  # noqa: E402
from bert_jax.parallel import sharding  # noqa: E402
from bert_jax.runs import benchmark  # noqa: E402
from bert_jax.settings.run_config import OptimizerConfig  # noqa: E402
from bert_jax.training.optimizers import make_optimizer  # noqa: E402
from bert_jax.training.state import abstract_state  # noqa: E402
from bert_jax.training.step import make_eval_step, make_train_step  # noqa: E402

ROWS, LENGTH = 16, 128

# (data, fsdp, tensor), dtype, dropout on attention probabilities, what is compiled, how the layers are. -1
# takes all devices of a TPU slice.
PROGRAMS = {
    "train on one": ((1, 1, 1), "bfloat16", 0.0, "train"),
    "train on eight": ((8, 1, 1), "bfloat16", 0.0, "train"),
    "train with data and tensor": ((4, 1, 2), "bfloat16", 0.0, "train"),
    "train with dropout": ((4, 1, 2), "bfloat16", 0.1, "train"),
    "train with fsdp": ((1, 8, 1), "float32", 0.0, "train"),
    "evaluate": ((8, 1, 1), "bfloat16", 0.0, "evaluate"),
    "fine-tune": ((8, 1, 1), "bfloat16", 0.1, "fine-tune"),
    "predict": ((1, 1, 1), "bfloat16", 0.0, "predict"),
    "predict in float32": ((1, 1, 1), "float32", 0.0, "predict"),
    "unrolled": ((1, 1, 1), "bfloat16", 0.0, "train", dict(scan_unroll=0)),
    "train with data": ((-1, 1, 1), "bfloat16", 0.1, "train"),
    "train with fsdp alone": ((1, -1, 1), "bfloat16", 0.1, "train"),
    "disentangled with data": ((-1, 1, 1), "bfloat16", 0.1, "train"),
    "train on two slices": ((-1, 1, 1), "bfloat16", 0.1, "train"),
    "evaluate with data": ((-1, 1, 1), "bfloat16", 0.1, "evaluate"),
    "fine-tune with data": ((-1, 1, 1), "bfloat16", 0.1, "fine-tune"),
    "unrolled, computed again": ((1, 1, 1), "bfloat16", 0.0, "train", dict(scan_unroll=0, remat="full")),
}


def batch_of_examples():
    ids = np.ones((ROWS, LENGTH), np.int32)
    return {
        "input_ids": ids,
        "lengths": np.full(ROWS, LENGTH, np.int32),
        "first_lengths": np.full(ROWS, LENGTH, np.int32),
        "targets": np.zeros(ROWS, np.int32),
        "weights": np.ones(ROWS, np.float32),
    }


def devices(sizes, slices):
    if CHIP not in SLICES:
        return hardware.Hosts(hardware.GPUS[CHIP], 1, int(np.prod(sizes))).devices()
    return hardware.parse_topology(f"{CHIP}:{SLICES[CHIP]}", slices).devices()


def lowered(name):
    """The program, and how many numbers the model has."""
    sizes, dtype, dropout, what, *execution = PROGRAMS[name]
    model = EncoderConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=6 if execution else 1, num_attention_heads=2,
        intermediate_size=256, max_position_embeddings=LENGTH, attention_probs_dropout_prob=dropout,
        dtype=dtype, **dict(*execution),
        position="disentangled" if name.startswith("disentangled") else "learned",
    )  # fmt: skip
    mesh = sharding.make_mesh(*sizes, devices=devices(sizes, slices=2 if "slices" in name else 1))
    if what in ("train", "evaluate"):
        task = benchmark.make_masked_lm(model, LENGTH)
        arrays = benchmark.synthetic_batch("packed", ROWS, LENGTH, model.vocab_size)
    else:
        task, arrays = Classification(model, 2), batch_of_examples()
    optimizer, schedule = make_optimizer(OptimizerConfig(), 20_000, task)
    state = abstract_state(task, optimizer, mesh)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    rows = sharding.batch_sharding(mesh)
    batch = {
        key: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=rows) for key, array in arrays.items()
    }
    if what in ("train", "fine-tune"):
        step = sharding.jit_train_step(make_train_step(task, optimizer, schedule), mesh, shardings)
        return step.lower(state, batch, np.uint32(0)), parameters
    if what == "evaluate":
        step = sharding.jit_eval_step(make_eval_step(task), mesh, shardings)
        return step.lower(state.params, batch, np.int32(0), np.uint32(0)), parameters
    with sharding.on_mesh(mesh):
        return jax.jit(task.predict).lower(state.params, batch), parameters


for name in sys.argv[2:]:
    began = time.monotonic()
    program, parameters = lowered(name)
    compiled = program.compile(None if CHIP in SLICES else hardware.GPU_COMPILER_OPTIONS)
    text = compiled.as_text()
    calls = collections.Counter(re.findall(r'custom_call_target="(__cu[^"]+)"', text))
    calls += collections.Counter(re.findall(r'call_target="(tpu_custom_call|AsyncCollectiveStart)"', text))
    calls["sparsecore"] = len(re.findall(r"%all-reduce.* call-start\(.*sparsecore", text))
    kinds = "all-reduce|reduce-scatter|all-gather|all-to-all"
    traffic = [
        (kind, re.findall(r"\w+\[[\d,]+\]", shapes))
        for shapes, kind in re.findall(rf"^ +%\S+ = (.*?) ({kinds})(?:-start)?\(", text, re.MULTILINE)
    ]
    heads = re.findall(r"= \(((?:bf16|f32)\[\d+(?:,\d+){3}\]).*?__cudnn\$fmha", text)
    memory = compiled.memory_analysis().peak_memory_in_bytes
    found = {"name": name, "calls": calls, "traffic": traffic, "heads": heads, "memory": memory}
    found["parameters"] = parameters
    print(json.dumps(found | {"seconds": time.monotonic() - began}), flush=True)
