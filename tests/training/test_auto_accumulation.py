import math

import pytest

from bert_jax.parallel import sharding
from bert_jax.training import auto_accumulation

FIXED, GRADIENTS, ROWS = 100.0, 50.0, 800.0


def search(limit, refuses_above=math.inf, tells=True):
    """The numbers of microbatches that were compiled, and the last of them."""
    tried = []

    def needed_by(parts):
        tried.append(parts)
        needed = FIXED + GRADIENTS + ROWS / parts
        return needed if needed <= refuses_above or tells else math.inf

    return tried, auto_accumulation.search((1, 2, 4, 8, 16), needed_by, FIXED, limit)


@pytest.mark.parametrize(
    "limit,parts", [(950, 1), (949, 2), (550, 2), (549, 4), (350, 4), (250, 8), (201, 16), (200, 16)]
)
def test_the_fewest_parts_that_fit(limit, parts):
    assert search(limit)[1] == (parts, FIXED + GRADIENTS + ROWS / parts)


def test_programs_that_the_compiler_refuses_do_not_fit():
    assert search(300, refuses_above=300, tells=False) == ([1, 2, 4, 8], (8, 250))
    assert search(300) == ([1, 8], (8, 250))  # two parts need more than 500 by the first figure


def test_parts_divide_the_rows_of_each_device():
    mesh = sharding.make_mesh(data=4, fsdp=2)
    assert auto_accumulation.divisors((96,), mesh) == [1, 2, 3, 4, 6, 12]
    assert auto_accumulation.divisors((96, 64), mesh) == [1, 2, 4] and auto_accumulation.divisors(
        (8,), mesh
    ) == [1]
