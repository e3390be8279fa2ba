"""GPT's question (Radford et al. 2018, table 5): left-to-right against masked LM, and the auxiliary loss.

    bert-jax sweep --experiment=gpt --workdir=runs/gpt --input='wiki/*' --input_format=wikiextractor \
        --data=glue=glue

pretrain/hour is trained by masked LM and by causal LM. The causal model is fine-tuned as GPT is: it predicts
from the last token of [CLS] A [SEP] B [SEP], with and without the loss of the next token.
"""

from bert_jax.runs.sweep import Experiment, MinimalPairs, Variant, finetuning

LEFT_TO_RIGHT = "left-to-right"


def get_experiment():
    return Experiment(
        "Left-to-right models, and GPT's auxiliary loss",
        variants=[
            Variant("masked LM", "pretrain/hour", "rows"),
            Variant(LEFT_TO_RIGHT, "pretrain/hour:left_to_right", "rows"),
            Variant("auxiliary loss", start=LEFT_TO_RIGHT, tune={"*": {"lm_weight": 0.5}}),
            Variant("random weights", start=LEFT_TO_RIGHT, tune={"*": {"from_scratch": True}}),
        ],
        measures=[
            MinimalPairs(),
            *(finetuning(task) for task in ("CoLA", "SST-2", "MRPC", "STS-B", "RTE")),
        ],
        budget="seconds=4800",
        vocabulary=("--size=8192",),
        records={"rows": ("--nsp=none", "--full_rows")},
        published="""
Radford et al. 2018, table 5, averages over GLUE's tasks: 74.7 with the auxiliary loss, 75.0 without it, 59.9
without pre-training. The BERT paper's table 1: GPT 75.1, BERT-Base 79.6. GPT reads a pair in both
orders in tasks of similarity; here, as in BERT, it is read once.
""",
    )
