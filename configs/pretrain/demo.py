"""What `bert-jax demo` pre-trains: pretrain/hour with 2 layers, for two minutes on two cores.

    bert-jax pretrain --config=pretrain/demo --workdir=demo/pretrain --config.data.dir=demo/records

It reads a megabyte of text ten times, in rows of 64 tokens.
"""

from bert_jax.settings import config_files


def get_config():
    c = config_files.load("pretrain/hour")
    c.model.num_hidden_layers = 2
    c.steps = 1500
    c.checkpoint.every = 500
    c.eval.every = 250
    c.log_every = 100
    return c
