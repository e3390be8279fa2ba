"""The one table of heads: what each is called by transformers and on the Hugging Face hub.

The parameters that a head has differ between families; see `Family.heads`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Head(NamedTuple):
    """How a head is known elsewhere.

    Attributes:
        suffix: of transformers' classes, whose names begin with the family's: `Bert` + `ForMaskedLM`.
        auto_class: transformers' class that loads the head of any family.
        pipeline: the hub's word for what the model is for; "" where it has none.
        labelled: whether each of its outputs has a name, which config.json keeps.
    """

    suffix: str
    auto_class: str
    pipeline: str = ""
    labelled: bool = False


HEADS: dict[str, Head] = {
    "none": Head("Model", "AutoModel", "feature-extraction"),
    "pretraining": Head("ForPreTraining", "AutoModelForPreTraining", "fill-mask"),
    "masked_lm": Head("ForMaskedLM", "AutoModelForMaskedLM", "fill-mask"),
    "sequence_classification": Head(
        "ForSequenceClassification", "AutoModelForSequenceClassification", "text-classification", True
    ),
    "token_classification": Head(
        "ForTokenClassification", "AutoModelForTokenClassification", "token-classification", True
    ),
    "multiple_choice": Head("ForMultipleChoice", "AutoModelForMultipleChoice"),
    "question_answering": Head("ForQuestionAnswering", "AutoModelForQuestionAnswering", "question-answering"),
}

# Heads that are made in pre-training: they have no classes, so a model may lose the others and keep these.
PRETRAINED = ("none", "masked_lm", "pretraining")


def head_of(groups: Collection[str], classifier: str = "sequence_classification") -> str:
    """Returns the name of the head that a set of groups of parameters makes up.

    Args:
        groups: such as "encoder", "pooler" and "classifier".
        classifier: the head that a `classifier` is of, since several have one.
    """
    if "qa" in groups:
        return "question_answering"
    if "classifier" in groups:
        return classifier
    if "mlm" in groups:
        return "pretraining" if "nsp" in groups else "masked_lm"
    return "none"
