"""The paper's table 8 (appendix C.2): six ways to replace masked tokens.

    bert-jax sweep --experiment=masks --workdir=runs/masks --input='wiki/*' --input_format=wikiextractor \
        --data=conll=conll2003

Each variant is pretrain/hour with one mix of [MASK], the same token and a random token. All are evaluated
with the mix of the first variant, and with [MASK] alone, as in fill-mask.
"""

from bert_jax.runs.sweep import Experiment, HeldOut, Variant, finetuning

MIXES = ("80-10-10", "100-0-0", "80-0-20", "80-20-0", "0-20-80", "0-0-100")  # percent [MASK], same, random
FEATURES = {"frozen": True, "head": "bilstm", "head_size": 256, "max_seq_length": 128}


def variant(mix):
    """Returns the variant with a mix."""
    mask, same, random = (int(share) / 100 for share in mix.split("-"))
    fields = {"masking.replace": f"{mask:g},{random:g},{same:g}", "eval_masking.replace": "0.8,0.1,0.1"}
    return Variant(mix, "pretrain/hour", "rows", fields)


def get_experiment():
    return Experiment(
        "Masked tokens replaced by [MASK], the same token or a random one",
        variants=[variant(mix) for mix in MIXES],
        measures=[
            HeldOut("80-10-10", "rows"),
            HeldOut("100-0-0", "rows", replace="1,0,0"),
            finetuning("CoNLL-2003", {"max_seq_length": 128}),
            finetuning("CoNLL-2003", FEATURES, 1e-3, "CoNLL-2003, features"),
        ],
        budget="seconds=1800",
        vocabulary=("--size=8192",),
        records={"rows": ("--nsp=none", "--full_rows")},
        published="""
The paper's table 8, BERT-Base, on the development sets:

| [MASK] | same | random | MNLI, fine-tuned | NER, fine-tuned | NER, features |
|---|---|---|---|---|---|
| 80% | 10% | 10% | 84.2 | 95.4 | 94.9 |
| 100% | 0% | 0% | 84.3 | 94.9 | 94.0 |
| 80% | 0% | 20% | 84.1 | 95.2 | 94.6 |
| 80% | 20% | 0% | 84.4 | 95.2 | 94.7 |
| 0% | 20% | 80% | 83.7 | 94.8 | 94.6 |
| 0% | 0% | 100% | 83.6 | 94.9 | 94.6 |

Those models have 110 million parameters and saw 137 billion tokens; these have 1.9 million parameters and are
pre-trained for minutes.
""",
    )
