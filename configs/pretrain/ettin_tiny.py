"""Ettin-17M's architecture (Weller et al. 2025) for a machine of a few cores: rows of 128 tokens, an hour.

    bert-jax vocab --kind=bpe --special_tokens=bert --input='corpus/*.txt' --output=bpe.json --size=8192
    bert-jax data --input='corpus/*.txt' --vocab=bpe.json --nsp=none --full_sentences --output=records
    bert-jax pretrain --config=pretrain/ettin_tiny --workdir=runs/ettin --config.data.dir=records

With 8,192 tokens it has 6.1M parameters, two thirds of them in the layers. Everything else is as in
pretrain/modernbert, with small batches: StableAdamW, a constant learning rate with a cooldown, and 30% of the
tokens masked (15% in evaluation).
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("ettin-17m")
    c.batch_size = 32
    c.steps = 4_000
    c.optimizer.name = "stable_adamw"
    c.optimizer.learning_rate = 3e-3
    c.optimizer.weight_decay = 0.1
    c.optimizer.b2 = 0.98
    c.optimizer.clip_norm = 0.0
    c.optimizer.schedule = "wsd"
    c.optimizer.warmup_steps = 200
    c.optimizer.cooldown_steps = 800
    c.optimizer.cooldown = "sqrt"
    c.masking.prob, c.masking.count, c.masking.never_chosen = 0.3, "bernoulli", "special"
    c.eval_masking.prob = 0.15
    c.checkpoint.every = 500
    c.eval.every = 500
    return c
