"""The masked LM head, the head for replaced tokens, and the models that have them."""

from __future__ import annotations

import flax.linen as nn

from bert_jax.kernels import tied_table
from bert_jax.kernels.tied_table import LateLogits, number_of_chunks
from bert_jax.models.encoder import Encoder, Pooler
from bert_jax.models.heads.classification import ClassificationModel
from bert_jax.models.heads.pooling import first_states
from bert_jax.models.heads.structures import MASKED_LM, REPLACED_TOKENS, MaskedLMHead, ReplacedTokensHead
from bert_jax.models.layers import ACTIVATIONS, Module, gather_positions, identity


class MaskedLanguageModelHead(Module):
    """Dense, activation, norm, a matmul with the word embeddings and a bias: [B, P, H] -> [B, P, V]."""

    head: MaskedLMHead = MASKED_LM

    def setup(self):
        config, head = self.config, self.head
        self.transform, self.activate = identity, identity
        if head.transform:
            width = (config.embedding_width,)
            self.transform = self.dense(None, width, ("embed",), ("embed_out",), use_bias=head.transform_bias)
            self.activate = ACTIVATIONS[head.activation or config.hidden_act]
        self.transform_norm = self.norm() if head.norm else identity
        self.bias = None
        if not head.tied:
            self.decoder = self.dense(
                None, (config.vocab_size,), ("embed",), ("vocab",), use_bias=head.decoder_bias
            )
        elif head.decoder_bias:
            self.bias = self.table("bias", ("vocab",), (config.vocab_size,), nn.initializers.zeros)
        self.logits = self._tied if head.tied else self._own

    def __call__(self, x, word_embeddings, late=False):
        """Returns the logits [B, P, V] of states [B, P, H].

        With `late`, they may be `LateLogits`, if the loss is faster with these.
        """
        return self.logits(self.transform_norm(self.activate(self.transform(x))), word_embeddings, late)

    def _tied(self, x, word_embeddings, late):
        if late and number_of_chunks(x.shape[0] * x.shape[1], x.shape[2]) > 1:
            return LateLogits(x, word_embeddings, self.bias)
        return tied_table.logits(x, word_embeddings, self.bias)

    def _own(self, x, word_embeddings, late):
        return self.decoder(x)


class ReplacedTokenHead(Module):
    """Dense, activation and one logit for each token: [B, L, H] -> [B, L] (ELECTRA, section 2)."""

    head: ReplacedTokensHead = REPLACED_TOKENS

    def setup(self):
        self.add_first = _without_first
        if self.head.adds_first:
            self.layer_norm = self.norm("norm")
            self.add_first = self._with_first
        self.dense_layer = self.dense("dense", (self.config.hidden_size,), ("embed",), ("embed_out",))
        self.activate = ACTIVATIONS[self.config.hidden_act]
        self.out = self.dense(None, (1,), ("embed",), ("classes",))

    def __call__(self, x, sequence_ids, cls_positions=None):
        """Returns the logits [B, L] that a token was replaced, for states [B, L, H].

        The other arguments are as in `ClassificationModel`.
        """
        x = self.add_first(x, sequence_ids, cls_positions)
        return self.out(self.activate(self.dense_layer(x)))[..., 0]

    def _with_first(self, x, sequence_ids, cls_positions):
        return self.layer_norm(first_states(x, sequence_ids, cls_positions) + x)


def _without_first(x, sequence_ids, cls_positions):
    return x


class PretrainingModel(Module):
    """Encoder with the masked LM and, if `next_sentence`, the next-sentence head (paper, section 3.1)."""

    head: MaskedLMHead = MASKED_LM
    next_sentence: bool = True

    def setup(self):
        self.encoder = Encoder(self.config)
        self.mlm = MaskedLanguageModelHead(self.config, self.head)
        if self.next_sentence:
            self.pooler = Pooler(self.config)
            self.nsp = self.dense(None, (2,), ("embed",), ("classes",))

    def __call__(
        self,
        input_ids,
        token_type_ids,
        position_ids,
        sequence_ids,
        masked_positions,
        cls_positions,
        deterministic=True,
        late_logits=False,
        vectors=None,
    ):
        """Returns the logits at the given positions only.

        The inputs of an `Encoder` are followed by int32 `masked_positions` [B, P], None to predict every
        token, and `cls_positions` [B, S], the position of [CLS] for each sequence of a row. With
        `late_logits`, masked LM logits may be `LateLogits`, for `objectives.losses.of_tokens`.

        Returns:
            Masked LM logits [B, P, V] and next-sentence logits [B, S, 2] (1 = random next; None without this
            head), in the dtype of `config`.
        """
        word = tied_table.for_each_shard(self.encoder.embeddings.word, len(input_ids))
        hidden = self.encoder(
            input_ids,
            token_type_ids,
            position_ids,
            sequence_ids,
            deterministic,
            word,
            vectors,
            for_masks=True,
        )
        masked = hidden if masked_positions is None else gather_positions(hidden, masked_positions)
        mlm_logits = self.mlm(masked, word, late_logits)
        if not self.next_sentence:
            return mlm_logits, None
        return mlm_logits, self.nsp(self.pooler(gather_positions(hidden, cls_positions)))


class ClassificationAndLanguageModel(ClassificationModel):
    """Encoder with a classification head and the masked LM head, which reads every token."""

    language_model: MaskedLMHead = MASKED_LM

    def setup(self):
        super().setup()
        self.mlm = MaskedLanguageModelHead(self.config, self.language_model)

    def __call__(
        self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True, cls_positions=None
    ):
        """Returns the logits of `ClassificationModel`, and masked LM logits for every token [B, L, V]."""
        word = tied_table.for_each_shard(self.encoder.embeddings.word, len(input_ids))
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic, word)
        return self.classify(hidden, sequence_ids, deterministic, cls_positions), self.mlm(hidden, word)
