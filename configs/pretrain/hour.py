"""A recipe for an hour on two cores: 4 layers of 128 in ModernBERT's form, full rows of 128 tokens.

    bert-jax vocab --input='wiki/*' --input_format=wikiextractor --output=vocab.txt --size=8192
    bert-jax data --input='wiki/*' --input_format=wikiextractor --vocab=vocab.txt --nsp=none --full_rows \
        --output=records
    bert-jax pretrain --config=pretrain/hour --workdir=runs/hour --config.data.dir=records

With a vocabulary of 8,192 it has 1.9M parameters. `pretrain/hour:pairs` has BERT's token types and heads, for
records of pairs; `hour:left_to_right` predicts the next token; `hour:two_layers` is better for runs of 15
minutes or less. Combine forms with commas. benchmarks/results/hour.md has measurements of these choices.
Rotary positions and pre-normalization matter most, then the initialization of weights with a standard
deviation of 1 / sqrt(hidden size), and masking 30% of the tokens. There is no dropout, because the text is
read only a few times.
"""

from bert_jax.errors import UserError
from bert_jax.settings import defaults

FORMS = ("pairs", "left_to_right", "two_layers")


def get_config(forms: str = ""):
    chosen = set(forms.split(",")) - {""}
    if not chosen <= {*FORMS}:
        raise UserError(f"pretrain/hour:{forms}: expected some of {', '.join(FORMS)} after the colon")
    c = defaults.pretrain(
        "ettin-17m",
        num_hidden_layers=2 if "two_layers" in chosen else 4,
        hidden_size=128,
        num_attention_heads=2,
        intermediate_size=384,
        initializer_range=0.08,
        max_position_embeddings=512,
        rotary_theta=10_000.0,
        local_window=0,
        global_every=1,
    )
    if "pairs" in chosen:
        c.model.model_type, c.model.type_vocab_size = "bert", 2
    else:
        c.model.classifier_pooling = "mean"  # rows of pre-training have texts without a [CLS]
    c.model.scan_unroll = 0
    c.batch_size = 32
    c.steps = 14_000
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.schedule = "warmup_then_decay"
    c.optimizer.learning_rate = 2e-3
    c.optimizer.warmup_steps = 0
    c.optimizer.warmup_fraction = 0.02
    c.optimizer.weight_decay = 0.1
    c.optimizer.b2 = 0.98
    if "left_to_right" in chosen:
        c.objective, c.model.causal, c.model.classifier_pooling = "causal_lm", True, "last"
    else:
        c.masking.prob, c.eval_masking.prob = 0.3, 0.15
    c.checkpoint.every = 500
    c.eval.every = 500
    c.eval.batches = 60
    return c
