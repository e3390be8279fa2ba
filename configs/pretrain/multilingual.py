"""Multilingual BERT (google-research/bert, multilingual.md): BERT-Base on 104 languages, cased. For TPUs.

    bert-jax vocab --input='wiki/en/*' --input='wiki/de/*' ... --input_format=wikiextractor \
        --output=vocab.txt --size=119547 --nolower_case --sampling_exponent=0.7
    bert-jax data --input='wiki/en/*' --input='wiki/de/*' ... --input_format=wikiextractor \
        --vocab=vocab.txt --output=records --max_seq_length=512 --sampling_exponent=0.7
    bert-jax pretrain --config=pretrain/multilingual:base --workdir=runs/mbert --config.data.dir=records

The recipe is the same as BERT-Base's: next-sentence pairs, 1M steps of 256 rows, 1e-4. With 119,547 tokens
the model has 177,853,440 parameters with its pooler, half of them in the word embeddings. multilingual:tiny
is the same with 4 layers of 256, for a laptop. docs/corpora.md has the rest.
"""

from bert_jax.errors import UserError
from bert_jax.settings import defaults

SIZES = {
    "base": {},
    "tiny": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
}


def get_config(size: str = "base"):
    if size not in SIZES:
        raise UserError(f"pretrain/multilingual:{size}: expected one of {', '.join(SIZES)}")
    c = defaults.pretrain("base", **SIZES[size])
    if size == "base":
        c.model.scan_unroll = 0  # minutes of compilation, once; no copies of stacked activations
    else:
        c.batch_size, c.steps = 32, 20_000
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 5e-4, 1000
    return c
