"""How a half of a post-norm layer ends: by one fused kernel where `dispatch` has one for this case."""

from __future__ import annotations

from bert_jax.kernels import dispatch, platform
from bert_jax.kernels.dispatch import Choice, ResidualCase
from bert_jax.kernels.pallas_residual import residual_norm

__all__ = ["choose_here", "residual_norm"]


def choose_here(requested: str, case: ResidualCase) -> Choice:
    """Returns which implementation, and why, for the platform that is being traced for.

    Args:
        requested: "auto", "xla" or "pallas".
        case: what is computed.

    Raises:
        UserError: the kernel is requested by name and cannot compute this.
    """
    return dispatch.choose("residual", requested, case, platform.target())
