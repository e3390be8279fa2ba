"""Ramps of the batch size and of the length as the configuration has them."""

import pytest

from bert_jax.errors import UserError
from bert_jax.settings import defaults, pretrain_config
from bert_jax.settings.pretrain_config import Ramp


def test_values_and_totals_by_step():
    ramp = Ramp.parse("batch_ramp", "0=4, 3=8,10=2", maximum=8)
    values = [ramp.at(step) for step in range(12)]
    assert values == [4] * 3 + [8] * 7 + [2] * 2
    assert [ramp.total_before(step) for step in range(13)] == [sum(values[:step]) for step in range(13)]
    # 768 rows to 4,608 of 1,024 tokens: the number of rows does not fit into 32 bits
    assert Ramp.constant(4608).total_before(2**31 - 1) == 4608 * (2**31 - 1)


@pytest.mark.parametrize("text", ["4=8", "0=4, 9=6, 5=8", "0=0", "0=4=8", "0=8, 5", "0=x", "0=4, 5=6"])
def test_mistakes(text):
    config = defaults.pretrain("tiny")
    config.update(batch_ramp=text, batch_size=8)
    with pytest.raises(UserError, match=f"batch_ramp={text!r}"):
        pretrain_config.pretraining(config)
