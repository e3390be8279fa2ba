"""An encoder that learns within an hour on two cores: 4 layers of 256 in ModernBERT's form, rows of 128.

    bert-jax vocab --input='wiki/*' --input_format=wikiextractor --output=vocab.txt --size=8192
    bert-jax data --input='wiki/*' --input_format=wikiextractor --vocab=vocab.txt --nsp=none --full_rows \
        --output_dir=records
    bert-jax pretrain --config=pretrain/hour --workdir=runs/hour --config.data.dir=records

With 8,192 tokens it has 5.6M parameters. Layers with their norms first leave the frequencies of words behind
within some hundred steps, where BERT's stay for thousands. There is no dropout: no text is seen twice.
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain(
        "ettin-17m",
        num_hidden_layers=4,
        intermediate_size=768,
        max_position_embeddings=512,
        rotary_theta=10_000.0,
        local_window=0,
        global_every=1,
    )
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
    c.eval_masking.prob = 0.15
    c.checkpoint.every = 500
    c.eval.every = 500
    c.eval.batches = 60
    return c
