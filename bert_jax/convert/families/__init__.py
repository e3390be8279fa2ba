"""Registers the model families that files may hold, with one record each.

To add a family, add a module with its record and an entry here.
"""

from bert_jax.convert.families import bert, distilbert
from bert_jax.convert.families.base import CLASSIFIER, Family
from bert_jax.models.config import EncoderConfig

FAMILIES: dict[str, Family] = {one.model_type: one for one in (bert.FAMILY, distilbert.FAMILY)}


def of(config: EncoderConfig) -> Family:
    """Returns the family of an encoder.

    For an encoder that belongs to no family it is BERT, whose heads it has; only writing such a model is
    refused.
    """
    return FAMILIES.get(config.model_type, bert.FAMILY)


__all__ = ["CLASSIFIER", "FAMILIES", "Family", "of"]
