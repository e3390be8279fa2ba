"""BERT-Large, as in the paper (appendix A.2): 335M parameters, 1M steps of 256 rows. For TPUs and GPUs.

    bert-jax pretrain --config=configs/pretrain/large.py --workdir=runs/large --config.data.dir=records

Where a batch does not fit the devices' memory, set accumulate_steps, or model.remat=full.
"""

from bert_jax import defaults


def get_config():
    c = defaults.pretrain("large")
    c.model.dtype = "bfloat16"
    return c
