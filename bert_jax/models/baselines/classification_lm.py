"""A model with two heads on one encoder: classification, and the next token of every position."""

from __future__ import annotations

from bert_jax.kernels import tied_table
from bert_jax.models.heads.classification import ClassificationModel
from bert_jax.models.heads.pretraining import MaskedLanguageModelHead
from bert_jax.models.heads.structures import MASKED_LM, MaskedLMHead


class ClassificationAndLanguageModel(ClassificationModel):
    """Encoder with a classification head and the masked LM head, which reads every token."""

    language_model: MaskedLMHead = MASKED_LM

    def setup(self):
        """Creates the submodules."""
        super().setup()
        self.mlm = MaskedLanguageModelHead(self.config, self.language_model)

    def __call__(
        self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True, cls_positions=None
    ):
        """Returns the logits of `ClassificationModel`, and those of every token [B, L, V]."""
        word = tied_table.for_each_shard(self.encoder.embeddings.word, len(input_ids))
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic, word)
        return self.classify(hidden, sequence_ids, deterministic, cls_positions), self.mlm(hidden, word)
