"""The paper's figure 5 (appendix C.1): the number of pre-training steps.

    bert-jax sweep --experiment=steps --workdir=runs/steps --input='wiki/*' --input_format=wikiextractor \
        --data=glue=glue --data=conll=conll2003

Each variant is a run of pretrain/hour with a complete learning rate schedule.
"""

from bert_jax.runs.sweep import Experiment, HeldOut, Variant, finetuning


def get_experiment():
    return Experiment(
        "Number of pre-training steps",
        variants=[Variant(f"1/{n}", "pretrain/hour", "rows", share=1 / n) for n in (8, 4, 2, 1)],
        measures=[
            HeldOut("held out", "rows"),
            finetuning("STS-B"),
            finetuning("CoNLL-2003", {"max_seq_length": 128}),
        ],
        budget="seconds=4800",
        vocabulary=("--size=8192",),
        records={"rows": ("--nsp=none", "--full_rows")},
        published="""
In the paper, 1,000,000 steps instead of 500,000 raise the MNLI accuracy of BERT-Base by 1.0. The paper
compares checkpoints of one run, whose learning rate had not decayed; here each run has a complete schedule.
""",
    )
