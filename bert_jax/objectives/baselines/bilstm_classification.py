"""Classification and regression of texts and text pairs by a BiLSTM without a Transformer."""

from __future__ import annotations

import dataclasses

from bert_jax.models.baselines.bilstm_classifier import HEAD, BilstmClassifier
from bert_jax.models.heads.structures import LSTM, ClassificationHead
from bert_jax.objectives.classification import Classification


@dataclasses.dataclass(frozen=True, eq=False)
class BilstmClassification(Classification):
    """`Classification` with a `BilstmClassifier`, of whose encoder there are the word embeddings alone.

    Attributes:
        size: features of each direction of the BiLSTM.
        pairs: whether the examples are pairs of texts.
        attends: whether the texts of a pair attend to each other.
        skipped_ids: the ids of the special tokens of a row.
    """

    classifier: ClassificationHead = HEAD
    size: int = 384
    pairs: bool = False
    attends: bool = False
    skipped_ids: tuple[int, ...] = ()

    may_differ = "encoder/(?!embeddings/word_embeddings$).*|pooler/.*"

    @property
    def model(self) -> BilstmClassifier:
        """Returns the BiLSTM with its head."""
        return BilstmClassifier(
            self.config, self.output_count, self.size, self.pairs, self.attends, self.skipped_ids
        )

    @property
    def new_groups(self) -> tuple[str, ...]:
        """Returns the parameter groups that are always newly initialized."""
        return (LSTM, *self.classifier.new_groups)
