"""BERT-Large in about 8,600 steps of 65,536 and 32,768 rows, with LAMB (You et al. 2020). For pod slices.

    bert-jax pretrain --config=pretrain/large_lamb:phase1 --workdir=runs/lamb-128 \
        --config.data.dir=records-128
    bert-jax pretrain --config=pretrain/large_lamb:phase2 --workdir=runs/lamb-512 \
        --config.data.dir=records-512 --config.init_from=runs/lamb-128

Phase 1 has rows of 128 tokens, and phase 2 of 512. Phase 2 starts from the weights of phase 1, with fresh
moments and a separate warm-up. Batches, steps, rates and warm-ups follow NVIDIA's BERT for PyTorch
(DeepLearningExamples). The decay after warm-up is linear, as in the paper; NVIDIA uses a square root. Only
hidden states have dropout, which saves the attention kernel a product for each probability.

Estimates, nothing measured (`bert-jax estimate --config=pretrain/large_lamb:phase1
--seq_length=128`, or `:phase2`, with these flags); without the start, evaluation and checkpoints:

    --topology=v5e:16x16 --config.accumulate_steps=4   phase 1, 12.98 of 16 GiB, 485 ms, 64% MFU, 1.0 hours
    --topology=v5e:16x16 --config.accumulate_steps=8   phase 2, 13.00 of 16 GiB, 1,008 ms, 66% MFU, 0.4 hours

Older estimates, when gradients were still reduced after each microbatch and kernels had no schedules:

    --topology=v4:8x8x8                                phase 1, 17.24 of 32 GiB, 0.4 hours
    --topology=v4:8x8x8 --config.accumulate_steps=2    phase 2, 20.93 of 32 GiB, 0.2 hours
"""

from bert_jax.errors import UserError
from bert_jax.settings import defaults

# batch_size, steps, learning rate, fraction of the steps that is warm-up
PHASES = {"phase1": (65_536, 7_038, 6e-3, 0.2843), "phase2": (32_768, 1_563, 4e-3, 0.128)}


def get_config(phase: str = ""):
    if phase not in PHASES:
        raise UserError(f"pretrain/large_lamb:{phase}: expected pretrain/large_lamb:phase1 or :phase2")
    c = defaults.pretrain("large")
    c.requires = "init_from" if phase == "phase2" else ""
    c.model.attention_probs_dropout_prob = 0.0
    c.model.scan_unroll = 0
    c.batch_size, c.steps, c.optimizer.learning_rate, warmup = PHASES[phase]
    c.optimizer.name = "lamb"
    c.optimizer.schedule = "warmup_then_decay"
    c.optimizer.warmup_steps = int(warmup * c.steps)
    c.checkpoint.every = 200
    c.eval.every = 200
    c.log_every = 10
    return c
