"""ALBERT's table 5 (Lan et al. 2020): sentence-order against next-sentence prediction.

    bert-jax sweep --experiment=sentence_order --workdir=runs/order --input='wiki/*' \
        --input_format=wikiextractor --data=glue=glue

Each of two models is trained on one kind of pairs and evaluated on both kinds.
"""

from bert_jax.runs.sweep import Experiment, HeldOut, Variant, finetuning


def get_experiment():
    return Experiment(
        "Sentence-order against next-sentence prediction",
        variants=[Variant(kind, "pretrain/hour:pairs,two_layers", kind) for kind in ("next", "sop")],
        measures=[
            HeldOut("asked about next", "next"),
            HeldOut("asked about sop", "sop"),
            finetuning("STS-B"),
            finetuning("MRPC"),
        ],
        budget="tokens=12000000",
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
