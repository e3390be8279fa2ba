"""Models with random parameters that several tests of conversions share."""

import numpy as np

from bert_jax.convert import Model
from bert_jax.convert.families import bert
from bert_jax.models import assembled


def random_model(config, head="pretraining", seed=0, **fields):
    """No parameter is constant, so that none can be left out or taken for another unnoticed."""
    rng = np.random.default_rng(seed)
    params = {
        name: (rng.normal(0, 0.2, shape) + name.endswith("/scale")).astype(np.float32)
        for name, shape in assembled.shapes(config, tuple(bert.FAMILY.allowed(head))).items()
    }
    return Model(config, params, head, source="tiny", **fields)
