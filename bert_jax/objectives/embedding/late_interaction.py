"""Late interaction (ColBERT): texts have one vector per token and are compared token by token."""

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
    """Trains token vectors so that a query scores higher with its document than with others.

    The hidden state of each token is projected to a vector of length 1 with `size` dimensions. For each query
    token, the largest inner product with a document token is taken; their sum is the score (Khattab and
    Zaharia 2020, ColBERT, section 3.3). Document tokens with ids in `skipped` do not count. The loss is
    cross-entropy over all documents of the batch, as in Santhanam et al. 2022, section 3.2, without teacher
    scores.

    Batches have the format of `TextGroups`: queries are anchors, documents are positives and negatives. All
    query rows have `query_length` tokens, all of which count in the score.
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
        """Returns float32 vectors: `queries` [B, `query_length`, H], `documents` [B, K - 1, L, H]."""
        # Queries are much shorter than documents, and would be padded to the same length in one array.
        queries = {name: batch[name][:, :1, : self.query_length] for name in INPUTS}
        documents = {name: batch[name][:, 1:] for name in INPUTS}
        # With one key, row i of queries and row i of documents would have the same dropout mask.
        keys = None if rngs is None else {name: jax.random.fold_in(key, 1) for name, key in rngs.items()}
        found = self._vectors(params, queries, rngs), self._vectors(params, documents, keys)
        return {"queries": found[0][:, 0], "documents": found[1]}

    def _vectors(self, params: Params, inputs: Batch, rngs: Rngs | None) -> jax.Array:
        """Returns float32 [B, K, L, H] for inputs [B, K, L]."""
        vectors = normalize(self.apply(params, inputs, rngs)[0])
        return vectors.reshape(*inputs["input_ids"].shape, self.size)

    def compare(self, params: Params, outputs: Any, batch: Batch) -> tuple[Pairs, Pairs]:
        ids, real = (batch[name][:, 1:] for name in ("input_ids", "sequence_ids"))
        counted = (real > 0) & ~jnp.isin(ids, jnp.array(self.skipped, jnp.int32))
        scores = max_sims(outputs["queries"], outputs["documents"], counted)  # [B, B, K - 1]
        return self.contrast(scores.swapaxes(1, 2).reshape(len(scores), -1), batch)

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the vectors of all tokens of each pair, float16 [B x 2, L, H].

        float16 is accurate enough, and there are hundreds of times as many values as in text vectors.
        """
        found = self.row_outputs(params, self.prepare(batch, None, False), None)
        queries, documents = found["queries"][:, None], found["documents"]
        padding = documents.shape[2] - queries.shape[2]
        queries = jnp.pad(queries, ((0, 0), (0, 0), (0, padding), (0, 0)))
        vectors = jnp.concatenate([queries, documents], axis=1)
        return vectors.reshape(-1, *vectors.shape[2:]).astype(jnp.float16)


def max_sim(query: jax.Array, documents: jax.Array, counted: jax.Array) -> jax.Array:
    """Returns a query's scores, float32 [...]: the sum of each query token's largest inner product.

    The token vectors are float32, of the query [Q, H] and of documents [..., L, H]. The document tokens in
    `counted`, bool [..., L], count.
    """
    found = jnp.einsum("qh,...lh->...ql", query, documents, precision=HIGHEST)
    return jnp.sum(jnp.max(jnp.where(counted[..., None, :], found, EXCLUDED), axis=-1), axis=-1)


def max_sims(queries: jax.Array, documents: jax.Array, counted: jax.Array) -> jax.Array:
    """Returns the scores of queries [N, Q, H] with documents: float32 [N, ...]; see `max_sim`."""
    # All inner products of 512 queries with 1,024 documents of 180 tokens take 12 GB, and one query at a time
    # takes 24 MB. Recomputing them for the gradient is cheap: it needs 2 million multiplications per document
    # token, compared with 85 million in the encoder of BERT-Base. Documents stay on their devices, and the
    # queries, which are smaller, are gathered.
    return jax.lax.map(jax.checkpoint(lambda query: max_sim(query, documents, counted)), queries)
