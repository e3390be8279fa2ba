"""BERT-Base on one host of Cloud TPU v5e, eight chips: as base.py, 32 rows of 512 tokens a chip.

    bert-jax pretrain --config=configs/pretrain/base_v5e.py --workdir=runs/base --config.data.dir=records

Dropout is on hidden states alone: the fused attention kernel has none on its probabilities. Layers are
unrolled, which costs minutes of compilation once and saves copies of stacked activations in every step.

Estimate (`bert-jax estimate --config=configs/pretrain/base_v5e.py --topology=v5e:2x4`, nothing measured):
ESTIMATE
"""

from bert_jax import defaults


def get_config():
    c = defaults.pretrain("base")
    c.model.dtype = "bfloat16"
    c.model.attention_probs_dropout_prob = 0.0
    c.model.scan_unroll = 0
    return c
