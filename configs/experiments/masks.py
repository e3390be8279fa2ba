"""The paper's table 8 (appendix C.2): one of six mixes of [MASK], the same token and a random one.

    bert-jax pretrain --config=experiments/masks:80-20-0 --workdir=runs/masks-80-20-0 \
        --config.data.dir=records

The mixes are 80-10-10, 100-0-0, 80-0-20, 80-20-0, 0-20-80 and 0-0-100.

The argument is a row of the table: percentages of [MASK], same and random. All else is pretrain/mini, and all
models are evaluated with the masks of the first row, so that their held-out losses answer the same question.
With --config.eval_masking.replace=1,0,0 the question is that of fill-mask.

The paper's models are BERT-Base. Its scores are those of MNLI and NER after fine-tuning and of NER on frozen
features: 84.2, 95.4 and 94.9 with 80-10-10; 84.3, 94.9 and 94.0 with 100-0-0; 83.6, 94.9 and 94.6 with
0-0-100.
"""

from bert_jax.errors import UserError
from bert_jax.settings import config_files

MIXES = ("80-10-10", "100-0-0", "80-0-20", "80-20-0", "0-20-80", "0-0-100")


def get_config(mix: str = "80-10-10"):
    if mix not in MIXES:
        raise UserError(f"experiments/masks:{mix}: expected one of {', '.join(MIXES)}")
    mask, same, random = (int(share) / 100 for share in mix.split("-"))
    c = config_files.load("pretrain/mini")
    c.masking.replace = f"{mask:g},{random:g},{same:g}"
    c.eval_masking.replace = "0.8,0.1,0.1"
    return c
