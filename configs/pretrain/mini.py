"""BERT-Mini (4 layers of 256, Turc et al. 2019): 11M parameters, in an hour on two CPU cores.

    bert-jax pretrain --config=pretrain/mini --workdir=runs/mini --config.data.dir=records

A run that does not see all of its text needs small batches, a high learning rate, Adam with a short memory
and no dropout: 870 steps of 32 rows with the paper's Adam learned only word frequencies. If you have more
time, raise --config.steps; on a GPU or TPU add --config.batch_size=256.
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("mini")
    c.model.hidden_dropout_prob = 0.0
    c.model.attention_probs_dropout_prob = 0.0
    c.model.scan_unroll = 0
    c.batch_size = 16
    c.steps = 7000
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.schedule = "warmup_then_decay"
    c.optimizer.learning_rate = 1e-3
    c.optimizer.warmup_steps = 300
    c.optimizer.b2 = 0.98
    c.checkpoint.every = 500
    c.eval.every = 500
    c.eval.batches = 60
    return c
