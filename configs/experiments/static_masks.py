"""RoBERTa's table 1 (Liu et al. 2019): static against dynamic masks, over many epochs.

    bert-jax sweep --experiment=static_masks --workdir=runs/static --input='wiki/wiki_0[0-7]' \
        --input_format=wikiextractor --data=glue=glue

Give about 2 million tokens of text, so that every row is read 20 times within the budget. One variant has the
same masks every time, one cycles through 10 sets of masks as BERT's records do, and one has new masks every
time.
"""

from bert_jax.runs.sweep import Experiment, HeldOut, Variant, finetuning

COPIES = {"static": 1, "10 copies": 10, "dynamic": 0}


def get_experiment():
    return Experiment(
        "Static against dynamic masks",
        variants=[
            Variant(name, "pretrain/hour:two_layers", "rows", {"masking.copies": copies})
            for name, copies in COPIES.items()
        ],
        measures=[HeldOut("held out", "rows"), finetuning("SST-2")],
        budget="tokens=40000000",
        vocabulary=("--size=8192",),
        records={"rows": ("--nsp=none", "--full_rows", "--eval_fraction=0.05")},
        published="""
RoBERTa's table 1, BERT-Base: SQuAD 2.0 F1, MNLI-m and SST-2 accuracy are 78.3, 84.3 and 92.5 with static
masks, 10 copies over 40 epochs, and 78.7, 84.0 and 92.9 with dynamic ones. No variant there has one copy.
""",
    )
