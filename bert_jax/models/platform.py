"""Which platform a program is being traced for."""

from __future__ import annotations

import jax


def target_platform() -> str:
    """cpu, gpu or tpu: of the mesh in context, whose devices need not be attached to this machine, else of
    the default backend."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform
