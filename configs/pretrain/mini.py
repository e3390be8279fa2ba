"""BERT-Mini (4 layers of 256, Turc et al. 2019): 11M parameters, in float32, for a few CPU cores and hours.

    bert-jax pretrain --config=configs/pretrain/mini.py --workdir=runs/mini --config.data.dir=records

On a GPU or TPU add --config.model.dtype=bfloat16 --config.batch_size=256.
"""

from bert_jax import defaults


def get_config():
    c = defaults.pretrain("mini")
    c.batch_size = 32
    c.steps = 30_000
    c.optimizer.learning_rate = 5e-4
    c.optimizer.warmup_steps = 1500
    return c
