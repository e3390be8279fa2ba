"""Shared code of conversion tests: random models, a comparison of models, and a mark for TensorFlow."""

import importlib.util

import numpy as np
import pytest

from bert_jax.convert import Model, families
from bert_jax.models import assembled


def random_model(config, head="pretraining", groups=(), classes=2, source="tiny", **fields):
    """Returns a model without constant parameters, so that tests notice missing or confused ones.

    `groups` are its parameter groups, by default all that the head may have.
    """
    rng, family = np.random.default_rng(0), families.of(config)
    module = family.module(config, groups or family.allowed(head), head, classes)
    params = {
        name: (rng.normal(0, 0.2, one.shape) + name.endswith("/scale")).astype(np.float32)
        for name, one in assembled.parameters(module).items()
    }
    return Model(config, params, head, source=source, **fields)


def check_equal(one, other):
    """Asserts the same head, architecture and bit-identical parameters, also of a generator."""
    assert one.head == other.head and one.config.spelled_out() == other.config.spelled_out()
    assert one.params.keys() == other.params.keys()
    assert all(np.array_equal(other.params[name], x) for name, x in one.params.items())
    assert (one.generator is None) == (other.generator is None)
    if one.generator is not None:
        check_equal(one.generator, other.generator)


def needs_tensorflow(test):
    missing = not importlib.util.find_spec("tensorflow")
    return pytest.mark.peer(pytest.mark.skipif(missing, reason="TensorFlow is not installed")(test))
