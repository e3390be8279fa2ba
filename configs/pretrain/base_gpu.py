"""BERT-Base on NVIDIA GPUs of one machine: base_gpu, or base_gpu:8 for eight.

    bert-jax pretrain --config=pretrain/base_gpu --workdir=runs/base --config.data.dir=records
    bert-jax pretrain --config=pretrain/base_gpu:8 --workdir=runs/base --config.data.dir=records

One process drives all GPUs of a machine. The batch is the paper's; on one GPU it is computed in four parts.
Dropout is on hidden states alone: cuDNN's fused attention has none on its probabilities here.

No estimate: there is no compiler for a GPU that is not there. By its FLOPs, 154 TFLOP for 512 rows of 512
tokens, a step of 256 rows takes 98 ms on one H200 at its measured 790 TFLOP/s of matrix products in bfloat16,
and it cannot take less; how much of that a GPU reaches has not been measured yet.
"""

from bert_jax import defaults
from bert_jax.errors import UserError


def get_config(gpus: str = "1"):
    if gpus not in ("1", "8"):
        raise UserError(
            f"pretrain/base_gpu:{gpus}: expected pretrain/base_gpu:1 or :8; for others set accumulate_steps"
        )
    c = defaults.pretrain("base")
    c.model.attention_probs_dropout_prob = 0.0
    c.accumulate_steps = 4 if gpus == "1" else 1
    return c
