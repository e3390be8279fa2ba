"""BERT-Tiny (2 layers of 128, Turc et al. 2019): 4.4M parameters, to try things out on a laptop.

bert-jax pretrain --config=pretrain/tiny --workdir=runs/tiny --config.data.dir=records
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("tiny")
    c.batch_size = 32
    c.steps = 20_000
    c.optimizer.learning_rate = 1e-3
    c.optimizer.warmup_steps = 1000
    return c
