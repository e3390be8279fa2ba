"""What `bert-jax demo` pre-trains: 2 layers of 128 on a megabyte of text, in minutes on two cores.

    bert-jax pretrain --config=configs/pretrain/demo.py --workdir=demo/pretrain --config.data.dir=demo/records

So short a run wants a high learning rate, no dropout, and Adam with a short memory.
"""

from bert_jax import defaults


def get_config():
    c = defaults.pretrain("tiny")
    c.model.max_position_embeddings = 64
    c.model.hidden_dropout_prob = 0.0
    c.model.attention_probs_dropout_prob = 0.0
    c.batch_size = 16
    c.steps = 1500
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.learning_rate = 2e-3
    c.optimizer.warmup_steps = 100
    c.optimizer.b2 = 0.98
    c.checkpoint.every = 500
    c.eval.every = 250
    c.log_every = 50
    return c
