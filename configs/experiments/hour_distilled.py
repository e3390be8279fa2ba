"""Distillation in a small budget: pretrain/hour with a sentence encoder as its teacher, and without it.

    bert-jax sweep --experiment=hour_distilled --workdir=runs/distilled --model=all-MiniLM-L6-v2 \
        --input='wiki/*' --input_format=wikiextractor --data=glue=glue --data=conll=conll2003

The budget, the text and the fine-tuning tasks are the same as in the experiment `hour`. The student has the
teacher's vocabulary and learns to match its embeddings and the outputs of its layers, as in TinyBERT's
general distillation.
"""

import math

from bert_jax import convert
from bert_jax.runs.sweep import Experiment, Variant, finetuning
from bert_jax.settings import config_files


def distilled(run):
    """Returns pretrain/hour with the checkpoint as its teacher."""
    c = config_files.load("pretrain/hour")
    c.distillation.teacher = run.checkpoint
    c.distillation.losses = "embeddings=1, hidden=1"
    layers = c.model.num_hidden_layers
    stride = convert.load_architecture(run.checkpoint)[0].num_hidden_layers / layers
    c.distillation.layers = ",".join(str(math.ceil((i + 1) * stride) - 1) for i in range(layers))
    return c


def get_experiment():
    return Experiment(
        "Distillation in a small budget",
        variants=[
            Variant("distilled", distilled, "rows"),
            Variant("masked LM", "pretrain/hour", "rows"),
            Variant("random weights", start="masked LM", tune={"*": {"from_scratch": True}}),
        ],
        measures=[
            *(finetuning(task, {"model.classifier_pooling": "mean"}) for task in ("STS-B", "SST-2")),
            finetuning("CoNLL-2003"),
        ],
        budget="seconds=4800",
        records={"rows": ("--nsp=none", "--full_rows")},
    )
