"""The optimizer of the PyTorch peers: as bert_jax's adamw_bias_corrected with warmup_then_decay."""

import torch
import transformers


def make(model, learning_rate, steps):
    """(AdamW with .01 of weight decay, none on biases and LayerNorm; 10% warm-up and linear decay)."""
    plain = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    decayed = [p for name, p in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, eps=1e-6)
    return optimizer, transformers.get_linear_schedule_with_warmup(optimizer, int(0.1 * steps), steps)


def update(model, loss, optimizer, schedule):
    """One step, with gradients clipped to a norm of 1."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
