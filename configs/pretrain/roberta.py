"""RoBERTa (Liu et al. 2019): BERT without next-sentence prediction on full rows of 512. For TPU slices.

    bert-jax vocab --kind=bpe --input='text/*' --output=tokenizer.json --size=50265
    bert-jax data --input='text/*' --vocab=tokenizer.json --output=records --max_seq_length=512 \
        --nsp=none --full_sentences
    bert-jax pretrain --config=pretrain/roberta:base --workdir=runs/roberta --config.data.dir=records

Sizes: base, large, and tiny (4 layers of 256, for a laptop). Base and large use the settings of appendix B,
table 9: 500,000 steps of 8,192 rows, Adam with b2=0.98 and no clipping, weight decay on every parameter.
Masks are new in every step; as in fairseq, <s> and </s> may be chosen, and random tokens are never special.
Unlike the paper's, the batch grows from 256 rows over the first 24,000 steps; --config.batch_ramp= switches
that off. If a batch does not fit, set accumulate_steps. docs/families.md has the rest.
"""

from bert_jax.errors import UserError
from bert_jax.models import sizes
from bert_jax.settings import defaults

TINY = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
SIZES = {"tiny": TINY} | {
    name.removeprefix("roberta-"): fields
    for name, fields in sizes.ROBERTA.items()
    if name.startswith("roberta-")
}


def get_config(size: str = "base"):
    if size not in SIZES:
        raise UserError(
            f"pretrain/roberta:{size}: expected pretrain/roberta:SIZE with one of {', '.join(SIZES)}"
        )
    fields = sizes.ROBERTA_ARCHITECTURE | SIZES[size] | {"model_type": "roberta"}
    fields.pop("vocab_size", None)  # set by the records
    c = defaults.pretrain("base", **fields)
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.b2, c.optimizer.eps, c.optimizer.clip_norm = 0.98, 1e-6, 0.0
    c.optimizer.no_decay = ""
    c.optimizer.learning_rate, c.optimizer.warmup_steps = (
        (4e-4, 30_000) if size == "large" else (6e-4, 24_000)
    )
    c.optimizer.schedule = "warmup_then_decay"
    c.masking.count, c.masking.never_chosen = "fairseq", "none"
    c.masking.exclude_special = True
    c.batch_size, c.steps = 8192, 500_000
    c.batch_ramp = "0=256, 6000=1024, 12000=2048, 18000=4096, 24000=8192"
    c.model.scan_unroll = 0  # minutes to compile each number of rows; no copies of stacked activations
    if size == "tiny":
        c.batch_size, c.steps, c.batch_ramp = 32, 20_000, ""
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 5e-4, 1000
        c.model.scan_unroll = 1
    return c
