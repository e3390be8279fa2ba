"""BERT-Base, as in the paper (appendix A.2): 110M parameters, 1M steps of 256 rows. For TPUs and GPUs.

    bert-jax pretrain --config=configs/pretrain/base.py --workdir=runs/base --config.data.dir=records

The paper trains 90% of the steps on sequences of 128 tokens and the rest on 512. Rows are packed here, so
that records of 512 tokens cost no padding from the start. Where a batch does not fit, set accumulate_steps.
"""

from bert_jax import defaults


def get_config():
    c = defaults.pretrain("base")
    c.model.dtype = "bfloat16"
    return c
