"""Parameter counts of the sizes that belong to no family of files, beside the papers' formulas.

Those of the families are in tests/convert/families/test_published_counts.py.
"""

import pytest

from bert_jax.convert import families
from bert_jax.models import PretrainingModel, parameters
from bert_jax.models.sizes import named

# (encoder, with the masked LM head)
COUNTS = {
    "base": (108_891_648, 109_514_298),
    "mosaicbert-base": (136_777_728, 137_400_384),
    "neobert": (221_665_536, 245_136_954),
    "crammed-bert": (119_589_889, 119_589_889),
}


@pytest.mark.parametrize("name", COUNTS)
def test_encoders_and_masked_lm_heads(name):
    config = named(name)
    boxed = parameters.abstract(PretrainingModel(config, families.of(config).masked_lm, False), 6)
    found = parameters.count(boxed["encoder"]), parameters.count(boxed)
    assert found == COUNTS[name]
