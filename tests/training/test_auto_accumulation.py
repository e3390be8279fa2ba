import math

import pytest

from bert_jax.parallel import sharding
from bert_jax.training import auto_accumulation

FIXED, GRADIENTS, ROWS = 100.0, 50.0, 800.0


@pytest.mark.parametrize("tells, compiled", [(True, [1, 8]), (False, [1, 2, 4, 8])])
def test_programs_that_cannot_fit_are_not_compiled(tells, compiled):
    """By the first figure, two parts need more than 500. The compiler may refuse a program without one."""
    tried = []

    def needed_by(parts):
        tried.append(parts)
        needed = FIXED + GRADIENTS + ROWS / parts
        return needed if needed <= 300 or tells else math.inf

    assert auto_accumulation.search((1, 2, 4, 8, 16), needed_by, FIXED, 300) == (8, 250)
    assert tried == compiled


def test_parts_divide_the_rows_of_each_device():
    mesh = sharding.make_mesh(data=4, fsdp=2)
    assert auto_accumulation.divisors((96,), mesh) == [1, 2, 3, 4, 6, 12]
    assert auto_accumulation.divisors((96, 64), mesh) == [1, 2, 4]
