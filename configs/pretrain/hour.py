"""A recipe for an hour on two cores: 4 layers of 256 in ModernBERT's form, full rows of 128 tokens.

    bert-jax vocab --input='wiki/*' --input_format=wikiextractor --output=vocab.txt --size=8192
    bert-jax data --input='wiki/*' --input_format=wikiextractor --vocab=vocab.txt --nsp=none --full_rows \
        --output_dir=records
    bert-jax pretrain --config=pretrain/hour --workdir=runs/hour --config.data.dir=records

With 8,192 tokens it has 5.6M parameters. With 2 layers of 128 the held-out loss was 5.13 after 1,000
steps, where that of BERT's form, twice as deep and wide, was 6.43 after as many rows
(benchmarks/results/hour.md); at this size it has not run to its end yet. There is no dropout: no text is seen
twice.
"""

from bert_jax.errors import UserError
from bert_jax.settings import defaults

FORMS = {"pairs", "left_to_right"}


def get_config(forms: str = ""):
    chosen = set(forms.split(",")) - {""}
    if chosen - FORMS:
        raise UserError(
            f"pretrain/hour:{forms}: expected pretrain/hour, or hour:pairs, hour:left_to_right or "
            "hour:pairs,left_to_right"
        )
    c = defaults.pretrain(
        "ettin-17m",
        num_hidden_layers=4,
        intermediate_size=768,
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
    c.steps = 8_000
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
        c.eval_masking.prob = 0.15
    c.checkpoint.every = 500
    c.eval.every = 500
    c.eval.batches = 60
    return c
