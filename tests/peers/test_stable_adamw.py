"""StableAdamW here and as a PyTorch optimizer: 50 steps of a small network, in float64 and in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.transformers_models import torch

from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training.optimizers import make_optimizer

pytestmark = pytest.mark.peer

STEPS, WARMUP, RATE, B1, B2, EPS = 50, 10, 8e-3, 0.9, 0.98, 1e-6
DECAY = 1e-2  # the share of a weight that is lost at the largest rate


def update_there(p, state, step, rate, decay):
    """One step of StableAdamW as ModernBERT's, with betas that correct the bias, by PyTorch alone."""
    m, v = state
    b1, b2 = (b * (1 - b ** (step - 1)) / (1 - b**step) for b in (B1, B2))
    m.lerp_(p.grad, 1 - b1)
    v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
    rms = (p.grad.square() / v.clamp(min=EPS**2)).mean().sqrt()
    rate_here = rate / max(1.0, rms.item())
    p.data.mul_(1 - rate_here / RATE * decay)
    p.data.addcdiv_(m, v.sqrt().add_(EPS), value=-rate_here)
    return rms.item()


@pytest.mark.parametrize("dtype, bound", [(np.float64, 1e-6), (np.float32, 1e-4)])
def test_50_steps(dtype, bound):
    rng = np.random.default_rng(0)
    initial = {"one": {"kernel": rng.normal(size=(8, 16)) * 0.3, "bias": np.zeros(16)},
               "two": {"kernel": rng.normal(size=(16, 1)) * 0.3, "bias": np.zeros(1)}}  # fmt: skip
    # Now and then the inputs are 100 times as large: the update has to be clipped.
    x = rng.normal(size=(STEPS, 32, 8)) * np.where(np.arange(STEPS) % 7 == 6, 100, 1)[:, None, None]
    y = rng.normal(size=(STEPS, 32, 1))
    schedule_of = dict(schedule="warmup_then_decay", learning_rate=RATE, warmup_steps=WARMUP)
    config = OptimizerConfig(
        name="stable_adamw", b1=B1, b2=B2, eps=EPS, clip_norm=0.0, weight_decay=DECAY / RATE, **schedule_of
    )
    tx, rate = make_optimizer(config, STEPS, None)

    def loss(params, x, y):
        hidden = jnp.tanh(x @ params["one"]["kernel"] + params["one"]["bias"])
        return jnp.mean((hidden @ params["two"]["kernel"] + params["two"]["bias"] - y) ** 2)

    names = [(layer, leaf) for layer in initial for leaf in initial[layer]]
    theirs = {
        name: torch.tensor(initial[name[0]][name[1]].astype(dtype), requires_grad=True) for name in names
    }
    states = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in theirs.items()}
    clipped = 0
    with jax.enable_x64(dtype == np.float64):
        params = jax.tree.map(lambda a: jnp.asarray(a, dtype), initial)
        state = tx.init(params)
        for step in range(STEPS):
            batch = x[step].astype(dtype), y[step].astype(dtype)
            updates, state = tx.update(jax.grad(loss)(params, *batch), state, params)
            now = float(rate(jnp.int32(step)))
            params = jax.tree.map(lambda p, u, now=now: p - now * u, params, updates)
            inputs, targets = map(torch.tensor, batch)
            hidden = torch.tanh(inputs @ theirs["one", "kernel"] + theirs["one", "bias"])
            output = hidden @ theirs["two", "kernel"] + theirs["two", "bias"]
            for p in theirs.values():
                p.grad = None
            (output - targets).square().mean().backward()
            for name, p in theirs.items():
                decay = DECAY if name[1] == "kernel" else 0.0
                clipped += update_there(p, states[name], step + 1, now, decay) > 1.1
    assert clipped > 10
    for layer, leaf in names:
        right = theirs[layer, leaf].detach().numpy()
        difference = np.linalg.norm(params[layer][leaf] - right) / np.linalg.norm(right)
        assert difference < bound, (layer, leaf, difference)
