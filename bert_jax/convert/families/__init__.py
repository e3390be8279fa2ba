"""The families of models that files may hold, one record each.

A family is added by a module with its record and a line here.
"""

from bert_jax.convert.families import bert
from bert_jax.convert.families.base import CLASSIFIER, Family
from bert_jax.models.config import EncoderConfig

# By model_type. Of two families that can describe the same architecture, the first is written.
FAMILIES: dict[str, Family] = {one.model_type: one for one in (bert.FAMILY,)}


def of(config: EncoderConfig) -> Family:
    """Returns the first family whose files can describe an architecture.

    An architecture that no file describes has BERT's heads; it is refused only where it would be written.
    """
    return next((family for family in FAMILIES.values() if family.holds(config)), bert.FAMILY)


__all__ = ["CLASSIFIER", "FAMILIES", "Family", "of"]
