"""ALBERT (Lan et al. 2020): shared layers, factorized embeddings, sentence order and LAMB. For TPU slices.

    bert-jax vocab --input='text/*' --output=vocab.model --kind=sentencepiece --size=30000 \
        --normalizer=albert
    bert-jax data --input='text/*' --vocab=vocab.model --output=records --max_seq_length=512 \
        --nsp=sop --normalizer=albert
    bert-jax pretrain --config=pretrain/albert:base --workdir=runs/albert --config.data.dir=records

Sizes: base, large, xlarge and xxlarge as first released, with the paper's dropout (none in xxlarge);
base_v2 to xxlarge_v2 without any; and tiny, 4 layers of 256 for a laptop. The settings of section 4.1
except in tiny: 125,000 steps of 4,096 rows of 512 tokens, n-gram masks, LAMB without bias correction at
1.76e-3, 3,125 steps of warm-up.
Version 2 is the same without dropout, on more text, for 10M steps (base) or 3M steps: set --config.steps. At
most 20 tokens of a row are predicted, the default of google-research/albert. Where a batch does not fit,
set accumulate_steps. docs/families.md has the rest.
"""

from bert_jax.errors import UserError
from bert_jax.models import sizes
from bert_jax.settings import defaults

TINY = {
    "embedding_size": 64,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
SIZES = {"tiny": TINY} | {
    name.removeprefix("albert-").removesuffix("-v1").replace("-", "_"): fields
    for name, fields in sizes.ALBERT.items()
}


def get_config(size: str = "base"):
    if size not in SIZES:
        raise UserError(
            f"pretrain/albert:{size}: expected pretrain/albert:SIZE with one of {', '.join(SIZES)}"
        )
    fields = sizes.ALBERT_ARCHITECTURE | SIZES[size] | {"model_type": "albert"}
    del fields["vocab_size"]  # set by the records
    c = defaults.pretrain("base", **fields)
    c.optimizer.name = "lamb_uncorrected"
    c.optimizer.learning_rate = 1.76e-3
    c.optimizer.warmup_steps = 3125
    c.masking.strategy = "ngram"
    c.masking.max_predictions = 20
    c.batch_size, c.steps = 4096, 125_000
    c.model.scan_unroll = 0  # minutes of compilation, once; no copies of stacked activations in every step
    if size == "tiny":
        c.batch_size, c.steps = 32, 20_000
        c.optimizer.warmup_steps = 1000
        c.model.scan_unroll = 1
    return c
