"""What several tests of conversions share: random models, what equal models are, and who needs TensorFlow."""

import importlib.util

import numpy as np
import pytest

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


def check_equal(one, other):
    """The same head, architecture and parameters, bit for bit, of both networks if there are two."""
    assert one.head == other.head and one.config.spelled_out() == other.config.spelled_out()
    assert one.params.keys() == other.params.keys()
    assert all(np.array_equal(other.params[name], x) for name, x in one.params.items())
    assert (one.generator is None) == (other.generator is None)
    if one.generator is not None:
        check_equal(one.generator, other.generator)


def needs_tensorflow(test):
    missing = not importlib.util.find_spec("tensorflow")
    return pytest.mark.peer(pytest.mark.skipif(missing, reason="TensorFlow is not installed")(test))
