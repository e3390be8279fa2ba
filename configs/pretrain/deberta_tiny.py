"""A DeBERTa v3 for two cores: 4 layers of 128 and a generator of 2, full rows of 128 tokens.

    bert-jax vocab --input='wiki/*' --input_format=wikiextractor --output=vocab.txt --size=8192
    bert-jax data --input='wiki/*' --input_format=wikiextractor --vocab=vocab.txt --nsp=none --full_rows \
        --output=records
    bert-jax pretrain --config=pretrain/deberta_tiny --workdir=runs/deberta_tiny --config.data.dir=records

Records of other small configs work, too: a WordPiece vocabulary is as good as SentencePiece's. Width, batch,
optimizer and the absence of dropout equal pretrain/hour's, so that one-hour runs can be compared. The
learning rate is half of its rate, because norms follow the sublayers.
"""

from bert_jax.models import sizes
from bert_jax.settings import config_files, defaults


def get_config():
    fields = sizes.DEBERTA_ARCHITECTURE | sizes.shape(4, 128)
    del fields["vocab_size"]  # set by the records
    no_dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    c, hour = defaults.pretrain("tiny", **fields, **no_dropout), config_files.load("pretrain/hour")
    c.model.initializer_range, c.model.scan_unroll = hour.model.initializer_range, 0
    c.objective = "replaced_tokens"
    c.replaced_tokens.sharing = "gdes"
    c.replaced_tokens.generator_hidden_size, c.replaced_tokens.generator_layers = 128, 2
    c.masking.replace = "1,0,0"
    for name in ("batch_size", "steps", "optimizer", "checkpoint", "eval"):
        c[name] = hour[name]
    c.optimizer.learning_rate = 1e-3
    return c
