"""Lists the heads, with their names in transformers and on the hub; `Family.heads` has their parameters."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Head(NamedTuple):
    """The names of a head in other programs."""

    suffix: str  # of the names of transformers' classes: `Bert` + `ForMaskedLM`
    pipeline: str = ""  # the hub's name for the task
    labeled: bool = False  # whether config.json has a name for each output

    @property
    def auto_class(self) -> str:
        """The class of transformers that loads the head of any family."""
        return f"AutoModel{self.suffix.removeprefix('Model')}"


HEADS: dict[str, Head] = {
    "none": Head("Model", "feature-extraction"),
    "pretraining": Head("ForPreTraining", "fill-mask"),
    "masked_lm": Head("ForMaskedLM", "fill-mask"),
    "replaced_tokens": Head("ForPreTraining"),
    "sequence_classification": Head("ForSequenceClassification", "text-classification", True),
    "token_classification": Head("ForTokenClassification", "token-classification", True),
    "multiple_choice": Head("ForMultipleChoice"),
    "question_answering": Head("ForQuestionAnswering", "question-answering"),
}

# Pre-training heads. They have no classes, so a model with their parameters can be reduced to them.
PRETRAINED = ("none", "masked_lm", "pretraining", "replaced_tokens")


def head_of(groups: Collection[str], classifier: str = "sequence_classification") -> str:
    """Returns the head of a set of parameter groups; `classifier`, if it has a group of this name."""
    if "qa" in groups:
        return "question_answering"
    if "classifier" in groups:
        return classifier
    if "discriminator" in groups:
        return "replaced_tokens"
    if "mlm" in groups:
        return "pretraining" if "nsp" in groups else "masked_lm"
    return "none"
