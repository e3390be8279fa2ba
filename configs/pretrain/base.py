"""BERT-Base, as in the paper (appendix A.2): 110M parameters, 1M steps of 256 rows. For TPUs and GPUs.

    bert-jax pretrain --config=pretrain/base --workdir=runs/base --config.data.dir=records

Rows are packed, so that rows of 512 tokens need no padding and can be used from the first step. The paper
trains 90% of the steps on rows of 128 tokens, and continues with the same state and schedule on rows of 512:

    bert-jax pretrain --config=pretrain/base:phase1 --workdir=runs/base-128 \
        --config.data.dir=records-128
    bert-jax pretrain --config=pretrain/base:phase2 --workdir=runs/base-512 \
        --config.data.dir=records-512 --config.resume_from=runs/base-128

Where a batch does not fit, set accumulate_steps. pretrain/base_v5e is the same without dropout on attention
probabilities.

Estimate for 16 chips of v5e, rows of 512, nothing measured (`bert-jax estimate --topology=v5e:4x4
--config=pretrain/base`): 3.95 of 16 GiB a chip; a step of 45 ms, with 6 ms of all-reduces that overlap the
computation; 5,684 full rows per second, 54% MFU; 13 hours for the million steps.

On GPUs use pretrain/base_gpu: cuDNN's attention does not support dropout on the probabilities, and XLA's
attention moves twice as many bytes.
"""

from bert_jax.settings import defaults


def get_config(phase: str = ""):
    c = defaults.pretrain("base")
    c.model.scan_unroll = 0  # minutes of compilation, once; no copies of stacked activations in every step
    return defaults.paper_phase(c, phase)
