"""ALBERT's question (Lan et al. 2020, table 5): sentence order against next sentence.

    bert-jax sweep --experiment=sentence_order --workdir=runs/order --input='wiki/*' \
        --input_format=wikiextractor --data=glue=glue

Two models learn one kind of pairs each, and both are asked about both kinds.
"""

from bert_jax.settings import config_files
from bert_jax.settings.experiments import Arm, Budget, Experiment, Finetuning, HeldOut, Pretraining

TUNING = {"epochs": 3.0, "optimizer.learning_rate": 3e-4}


def get_experiment():
    def config(run):
        # BERT's form has a pooler and a head for the pairs.
        c = config_files.load("pretrain/mini")
        hour = config_files.load("pretrain/hour")
        c.model.norm_placement, c.model.final_norm = "pre", True
        c.batch_size, c.optimizer = hour.batch_size, hour.optimizer
        return c

    return Experiment(
        "Sentence order against next sentence",
        arms=[Arm(kind, Pretraining(config, kind)) for kind in ("next", "sop")],
        measures=[
            HeldOut("asked about next", "next"),
            HeldOut("asked about sop", "sop"),
            Finetuning("STS-B", "finetune/glue:stsb", "glue", ("pearson",), TUNING),
            Finetuning("MRPC", "finetune/glue:mrpc", "glue", ("f1",), TUNING),
        ],
        budget=Budget(tokens=20_000_000),
        vocabulary=("--size=8192",),
        records={kind: (f"--nsp={kind}",) for kind in ("next", "sop")},
        published="""
ALBERT's table 5, ALBERT-Base, accuracy of the heads:

| pre-trained on | masked LM | asked about next | asked about order | SQuAD 1.1 | MNLI |
|---|---|---|---|---|---|
| none | 54.9 | 52.4 | 53.3 | 88.6/81.5 | 81.5 |
| next | 54.5 | 90.5 | 52.0 | 88.4/81.5 | 81.6 |
| order | 54.0 | 78.9 | 86.5 | 89.3/82.3 | 82.0 |

Those models are some forty times as large and saw a thousand times the text.
""",
    )
