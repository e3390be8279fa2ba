"""The end of half a post-norm layer, computed by a fused kernel if `dispatch` has one for the case."""

from __future__ import annotations

from bert_jax.kernels import dispatch, platform
from bert_jax.kernels.dispatch import Choice, ResidualCase
from bert_jax.kernels.pallas_residual import residual_norm

__all__ = ["choose_here", "residual_norm"]


def choose_here(requested: str, case: ResidualCase) -> Choice:
    """Returns the implementation to use, and why, for the platform being traced for.

    Args:
        requested: "auto", "xla" or "pallas".
        case: what is computed.

    Raises:
        UserError: the kernel is requested by name and cannot compute this.
    """
    return dispatch.choose("residual", requested, case, platform.target())
