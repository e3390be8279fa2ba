"""The losses of runs of five steps."""

import json
from pathlib import Path

from support import processes, recorded
from support.gate.inputs import inside, run

NO_DROPOUT = ("--config.model.hidden_dropout_prob=0", "--config.model.attention_probs_dropout_prob=0")

_SMALL = (
    "--config.model.hidden_size=16 --config.model.num_hidden_layers=2 --config.model.num_attention_heads=2 "
    "--config.model.intermediate_size=32 --config.model.max_position_embeddings=48 --config.log_every=1"
).split()
PRETRAIN = [
    *("pretrain", "--config=pretrain/tiny", *_SMALL),
    *("--config.batch_size=16", "--config.optimizer.warmup_steps=2"),
]
FINETUNE = [
    *(*_SMALL, "--config.vocab=vocab.txt", "--config.max_seq_length=48", "--config.batch_size=8"),
    "--config.epochs=1",
]

# Runs of five steps.
CURVES = {
    "pretraining on packed records": [*PRETRAIN, "--config.data.dir=packed", *NO_DROPOUT],
    "pretraining in two parts": [
        *(*PRETRAIN, "--config.data.dir=packed", "--config.accumulate_steps=2"),
        *("--config.optimizer.name=lamb", *NO_DROPOUT),
    ],
    "pretraining on google records": [*PRETRAIN, "--config.data.dir=google", *NO_DROPOUT],
    "classification": [
        *("finetune", "--config=finetune/classification", *FINETUNE, *NO_DROPOUT),
        *("--config.data.train=table.csv", "--config.data.eval=table.csv"),
        *("--config.data.text_a=text", "--config.data.text_b=other", "--config.data.label=label"),
    ],
    "multiple choice": [
        *("finetune", "--config=finetune/multiple_choice", *FINETUNE),
        *("--config.data.train=table.csv", "--config.data.eval=table.csv"),
        *("--config.data.text_a=text", "--config.data.choices=text,other", "--config.data.label=right"),
    ],
    "questions": [
        *("finetune", "--config=finetune/squad", *FINETUNE, *NO_DROPOUT, "--config.doc_stride=12"),
        *("--config.data.train=questions.jsonl", "--config.data.eval=questions.jsonl"),
        "--config.max_query_length=8",
    ],
    "tags": [
        *("finetune", "--config=finetune/tagging", *FINETUNE, *NO_DROPOUT),
        *("--config.data.train=words.jsonl", "--config.data.eval=words.jsonl"),
    ],
}
STEPS = "--config.steps=5 --config.checkpoint.every=0 --config.eval.every=0 --config.eval.batches=2".split()

METRICS = "loss grad_norm mlm_loss mlm_accuracy nsp_loss accuracy f1 f1_macro exact_match".split()


def curve(name, folder):
    """The metrics of each step and evaluation of one of CURVES; `folder` has the records and the tables."""
    workdir = Path(folder) / f"run-{name.replace(' ', '-')}"
    arguments = CURVES[name]
    with inside(folder), processes.quick_compilation():
        run(*arguments, f"--workdir={workdir}", *(STEPS if arguments[0] == "pretrain" else ()))
    return metrics(workdir)


def metrics(workdir):
    """[[kind, step, {metric: value}], ...] of a work directory."""
    lines = map(json.loads, (Path(workdir) / "metrics.jsonl").read_text().splitlines())
    return [
        [line["kind"], line["step"], {name: line[name] for name in METRICS if name in line}] for line in lines
    ]


def check_curves(expected, found):
    """One line for each curve that differs from what is recorded; "" if none does."""
    exact = expected["machine"] == found["machine"]
    lines = []
    for name in sorted({*expected["curves"], *found["curves"]}):
        one, two = (each["curves"].get(name, []) for each in (expected, found))
        keys = [[[kind, step, sorted(values)] for kind, step, values in curve] for curve in (one, two)]
        if keys[0] != keys[1]:
            lines.append(f"{name}: other steps or metrics: {keys[0]}, now {keys[1]}")
            continue
        for (kind, step, before), (*_, now) in zip(one, two, strict=True):
            lines += [
                f"{name}: {kind} step {step}: {metric} was {before[metric]} and is {now[metric]}"
                for metric in before
                if not recorded.same_numbers(before[metric], now[metric], exact)
            ]
    return recorded.explain(lines)
