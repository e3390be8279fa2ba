"""The families of models that files may hold, one record each.

A family is added by a module with its record and a line here.
"""

from bert_jax.convert.families import bert, distilbert
from bert_jax.convert.families.base import CLASSIFIER, Family
from bert_jax.models.config import EncoderConfig

FAMILIES: dict[str, Family] = {one.model_type: one for one in (bert.FAMILY, distilbert.FAMILY)}


def of(config: EncoderConfig) -> Family:
    """Returns the family of an encoder.

    An encoder of no family that files can hold has BERT's heads; it is refused only where it is written.
    """
    return FAMILIES.get(config.model_type, bert.FAMILY)


__all__ = ["CLASSIFIER", "FAMILIES", "Family", "of"]
