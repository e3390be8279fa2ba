"""BERT-Base on NVIDIA GPUs of one machine: base_gpu, or base_gpu:8 for eight.

    bert-jax pretrain --config=pretrain/base_gpu --workdir=runs/base --config.data.dir=records
    bert-jax pretrain --config=pretrain/base_gpu:8 --workdir=runs/base --config.data.dir=records

One process drives all GPUs of a machine. The batch is the paper's; one GPU computes it in four microbatches.
Only hidden states have dropout, so that attention uses cuDNN, which does not support dropout on its
probabilities here. With the paper's dropout (`--config.model.attention_probs_dropout_prob=0.1`), it uses XLA,
which moves twice as many bytes.

Estimates, nothing measured (`bert-jax estimate --config=pretrain/base_gpu --topology=h100:1`, and
`base_gpu:8` with `h100:8`), rows of 512: 11.9 GiB on one H100, 6.5 GiB on each of eight, without cuDNN's
workspace and NCCL's buffers. A step takes at least 79 ms for its products at the peak of one H100, and 93 ms
for the 313 GB that it moves; on eight, 10 ms and 14 ms, and each sends 0.41 GiB of gradients. How near a GPU
comes to these bounds has not been measured yet.
"""

from bert_jax.errors import UserError
from bert_jax.settings import defaults


def get_config(gpus: str = "1"):
    if gpus not in ("1", "8"):
        raise UserError(
            f"pretrain/base_gpu:{gpus}: expected pretrain/base_gpu:1 or :8; for others set accumulate_steps"
        )
    c = defaults.pretrain("base")
    c.model.attention_probs_dropout_prob = 0.0
    c.model.scan_unroll = 0  # the program moves a third fewer bytes: no copies of stacked activations
    c.accumulate_steps = 4 if gpus == "1" else 1
    return c
