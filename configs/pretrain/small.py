"""BERT-Small (4 layers of 512, Turc et al. 2019): 29M parameters. For one GPU or TPU.

bert-jax pretrain --config=pretrain/small --workdir=runs/small --config.data.dir=records
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("small")
    c.steps = 250_000
    c.optimizer.learning_rate = 5e-4
    c.optimizer.warmup_steps = 10_000
    return c
