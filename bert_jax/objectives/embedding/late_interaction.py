"""Late interaction: a vector for each token, and texts that are compared token by token (ColBERT)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.classification import ClassificationModel
from bert_jax.models.heads.structures import TOKEN_VECTORS, ClassificationHead
from bert_jax.models.row_inputs import INPUTS, TYPES
from bert_jax.objectives.base import Batch, Pairs, Params, Rngs
from bert_jax.objectives.embedding.sentence import EXCLUDED, HIGHEST, TextGroups, normalize


@dataclasses.dataclass(frozen=True, eq=False)
class LateInteraction(TextGroups):
    """Vectors of tokens, such that the score of a query with its document is larger than with others.

    The state of each token is projected to a vector of length 1. A score is the sum over the tokens of the
    query of the largest inner product with a token of the document (Khattab and Zaharia 2020, ColBERT,
    section 3.3). The loss is cross-entropy over all documents of the batch, as in Santhanam et al. 2022,
    section 3.2, without the scores of a teacher.

    Batches are those of `TextGroups`, with queries as anchors, and documents as positives and negatives. All
    rows of queries have `query_length` tokens.

    Attributes:
        config: the configuration of the encoder.
        size: number of dimensions of the vectors.
        query_length: number of tokens of a query, all of which count in the score.
        group: number of texts in a group of training.
        temperature: what scores are divided by.
        skipped: ids of the tokens of documents that do not count in the score.
        token_types: token types of the first and of the second text.
        classifier: the projection.
    """

    config: EncoderConfig
    size: int = 128
    query_length: int = 32
    group: int = 2
    temperature: float = 1.0
    skipped: tuple[int, ...] = ()
    token_types: tuple[int, int] = TYPES
    classifier: ClassificationHead = TOKEN_VECTORS

    @property
    def model(self) -> ClassificationModel:
        return ClassificationModel(self.config, self.size, self.classifier)

    def row_widths(self, rows: int, width: int) -> tuple[int, ...]:
        return (min(self.query_length, width), *super().row_widths(rows - 1, width))

    def row_outputs(self, params: Params, batch: Batch, rngs: Rngs | None) -> dict[str, jax.Array]:
        """Returns the vectors of a prepared batch, float32.

        Returns:
            `queries` [B, Q, H] and `documents` [B, K - 1, L, H], where Q is `query_length`.
        """
        # Queries are much shorter than documents. In the same rows, they would be padded to their length.
        queries = {name: batch[name][:, :1, : self.query_length] for name in INPUTS}
        documents = {name: batch[name][:, 1:] for name in INPUTS}
        # Row i of both would have the same dropout with the same key.
        keys = None if rngs is None else {name: jax.random.fold_in(key, 1) for name, key in rngs.items()}
        found = self._vectors(params, queries, rngs), self._vectors(params, documents, keys)
        return {"queries": found[0][:, 0], "documents": found[1]}

    def _vectors(self, params: Params, inputs: Batch, rngs: Rngs | None) -> jax.Array:
        """Returns float32 [B, K, L, H] for inputs [B, K, L]."""
        vectors = normalize(self.apply(params, inputs, rngs))
        return vectors.reshape(*inputs["input_ids"].shape, self.size)

    def compare(self, params: Params, outputs: Any, batch: Batch) -> tuple[Pairs, Pairs]:
        ids, real = (batch[name][:, 1:] for name in ("input_ids", "sequence_ids"))
        counted = (real > 0) & ~jnp.isin(ids, jnp.array(self.skipped, jnp.int32))
        scores = max_sims(outputs["queries"], outputs["documents"], counted)  # [B, B, K - 1]
        return self.contrast(scores.swapaxes(1, 2).reshape(len(scores), -1), batch)

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the vectors of all tokens of each pair, float16 [B x 2, L, H].

        They are as accurate as needed, and a file has hundreds of times as many numbers as in vectors of
        texts.
        """
        found = self.row_outputs(params, self.prepare(batch, None, False), None)
        queries, documents = found["queries"][:, None], found["documents"]
        padding = documents.shape[2] - queries.shape[2]
        queries = jnp.pad(queries, ((0, 0), (0, 0), (0, padding), (0, 0)))
        vectors = jnp.concatenate([queries, documents], axis=1)
        return vectors.reshape(-1, *vectors.shape[2:]).astype(jnp.float16)


def max_sim(query: jax.Array, documents: jax.Array, counted: jax.Array) -> jax.Array:
    """Returns the scores of a query with documents: the sum of the largest inner product of each token.

    Args:
        query: float32 [Q, H], the vectors of the tokens of a query.
        documents: float32 [..., L, H], those of documents.
        counted: bool [..., L], the tokens of documents that count.

    Returns:
        float32 [...].
    """
    found = jnp.einsum("qh,...lh->...ql", query, documents, precision=HIGHEST)
    return jnp.sum(jnp.max(jnp.where(counted[..., None, :], found, EXCLUDED), axis=-1), axis=-1)


def max_sims(queries: jax.Array, documents: jax.Array, counted: jax.Array) -> jax.Array:
    """Returns the scores of queries [N, Q, H] with documents: float32 [N, ...]; see `max_sim`."""
    # All inner products of 512 queries with 1,024 documents of 180 tokens would be 12 GB. Those of one query
    # at a time are 24 MB. They are computed again for the gradient, which costs little: 2 million
    # multiplications for each token of a document, of which the encoder of BERT-Base has 85 million.
    # Documents stay on their devices, and the queries, which are smaller, are gathered.
    return jax.lax.map(jax.checkpoint(lambda query: max_sim(query, documents, counted)), queries)
