"""BERT-Large, as in the paper (appendix A.2): 335M parameters, 1M steps of 256 rows. For TPUs and GPUs.

    bert-jax pretrain --config=pretrain/large --workdir=runs/large --config.data.dir=records

In two phases with rows of 128 and 512 tokens, as in pretrain/base:

    bert-jax pretrain --config=pretrain/large:phase1 --workdir=runs/large-128 \
        --config.data.dir=records-128
    bert-jax pretrain --config=pretrain/large:phase2 --workdir=runs/large-512 \
        --config.data.dir=records-512 --config.resume_from=runs/large-128

Where a batch does not fit the devices' memory, set accumulate_steps, or model.remat=full.

Estimate for 16 chips of v5e, rows of 512, nothing measured (`bert-jax estimate --topology=v5e:4x4
--config=pretrain/large`): 10.90 of 16 GiB a chip; a step of 141 ms, with 21 ms of all-reduces that overlap
the computation; 1,822 full rows per second, 59% MFU; 39 hours for the million steps. Without a separate
kernel for norms, as now, a step takes about 4% longer.
"""

from bert_jax.settings import defaults


def get_config(phase: str = ""):
    c = defaults.pretrain("large")
    c.model.scan_unroll = 0  # minutes of compilation, once; no copies of stacked activations in every step
    return defaults.paper_phase(c, phase)
