"""Sentence embeddings: one vector per text, trained by comparing the texts of a batch with each other."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.classification import SentenceModel
from bert_jax.models.heads.structures import LEAST_LENGTH, SENTENCE, ClassificationHead
from bert_jax.models.layers import kernel_init
from bert_jax.models.row_inputs import TYPES
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Pairs, Params, Rngs
from bert_jax.objectives.losses import Pair
from bert_jax.objectives.rows import RowObjective

CONTRASTIVE, COSENT, CLASSES = KINDS = ("contrastive", "cosent", "classes")
CLASSIFIER = "classifier"


HIGHEST = jax.lax.Precision.HIGHEST  # for inner products; a low temperature amplifies their errors
EXCLUDED = -1e9  # the logit of a text that is not a candidate


class TextObjective(RowObjective):
    """Base class of objectives that train vectors and are evaluated on pairs of texts."""

    choices = 2  # texts in an evaluation group

    @property
    def has_softmax(self) -> bool:
        return False


class TextGroups(TextObjective):
    """An objective that compares texts.

    A group of texts is an anchor, its positive, and any number of hard negatives, in this order. Batches come
    from `rows.batches` and have [B, K] rows, K texts per group; int32 `texts` are equal for equal texts.
    Training groups have `group` texts, and evaluation groups are pairs. Scores are divided by the
    temperature. If `symmetric`, the loss is the mean of both directions, anchor to positive and back.
    """

    group: int = 2
    temperature: float = 1.0
    symmetric: bool = False
    compares_rows = True

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"task": jnp.sum(self.by_group("weights", batch)[:, 0])}

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        return self.compare(params, self.row_outputs(params, batch, rngs), batch)

    def by_group(self, name: str, batch: Batch) -> jax.Array:
        """Returns an entry of a batch that has one value per text as [B, K]; packed batches have [B x K]."""
        return batch[name].reshape(-1, self.group)

    def contrast(self, scores: jax.Array, batch: Batch) -> tuple[Pairs, Pairs]:
        """Returns InfoNCE, the cross-entropy of finding each anchor's positive, and its accuracy.

        `scores`, float32 [B, (K - 1) B], are each anchor's scores with the other texts of all groups: first
        all positives, then all first negatives, and so on. A text equal to the anchor, or to a positive of an
        equal anchor, is not used as a negative.
        """
        texts, present = self.by_group("texts", batch), self.by_group("weights", batch)
        weights = present[:, 0]
        candidates = _candidates(texts, present)
        numbers = jnp.arange(len(scores))
        logits = jnp.where(candidates, scores / self.temperature, EXCLUDED)
        loss = losses.cross_entropy(logits, numbers, weights)
        accuracy = losses.accuracy(logits, numbers, weights)
        if self.symmetric:
            # Pairs that are excluded in one direction are also excluded in the other.
            among = slice(len(scores))
            back = jnp.where(candidates[:, among] & (weights > 0)[:, None], logits[:, among], EXCLUDED).T
            loss = ((loss[0] + losses.cross_entropy(back, numbers, weights)[0]) / 2, loss[1])
        return {"task": loss}, {"accuracy": accuracy}


def _candidates(texts: jax.Array, present: jax.Array) -> jax.Array:
    """Returns bool [B, (K - 1) B], each anchor's candidates, which always include its own positive."""
    anchors, positives = texts[:, :1], texts[:, 1:2]
    others = texts[:, 1:].T.reshape(1, -1)
    # A matmul of floats is fast on every platform; a matmul of booleans is not.
    equal_anchors, equal_positives = (
        jnp.asarray(equal, jnp.float32) for equal in (anchors == anchors.T, positives == others)
    )
    is_positive = jnp.matmul(equal_anchors, equal_positives) > 0  # positive of an equal anchor
    own = jnp.arange(len(anchors))[:, None] == jnp.arange(others.shape[1])
    real = present[:, 1:].T.reshape(1, -1) > 0
    return own | (real & (others != anchors) & ~is_positive)


def normalize(vectors: jax.Array) -> jax.Array:
    """Returns vectors [..., H] scaled to length 1; zero vectors stay zero and have a finite gradient."""
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, LEAST_LENGTH**2))


class TextVectors(TextObjective):
    """Base class of objectives that train one vector per text."""

    may_be_packed = True

    @property
    def model(self) -> SentenceModel:
        return SentenceModel(self.config, self.classifier.pooling_of(self.config))

    def row_outputs(self, params: Params, batch: Batch, rngs: Rngs | None) -> jax.Array:
        """Returns the vectors of a prepared batch, float32 [B, K, H], or [R, S, H] for packed rows."""
        encoder = {"encoder": params["encoder"]}
        vectors, _ = self.apply(encoder, batch, rngs, cls_positions=batch.get("cls_positions"))
        return vectors.reshape(batch["input_ids"].shape[0], -1, vectors.shape[-1])

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the vectors of both texts of each pair, float32 [B, 2 H]."""
        vectors = self.row_outputs(params, self.prepare(batch, None, False), None)
        return vectors.reshape(len(vectors), -1)


@dataclasses.dataclass(frozen=True, eq=False)
class SentenceEmbedding(TextVectors, TextGroups):
    """Trains text vectors that are close if the texts belong together.

    Batches have the format of `TextGroups`, or are packed by `rows.packing`. The kinds of losses are:

    - "contrastive": cross-entropy of finding the positive of each anchor among the positives and negatives of
      the whole batch (InfoNCE); logits are cosines / temperature (Gao et al. 2021, SimCSE, section 3).
    - "cosent": of any two pairs in a batch, the pair with the larger target should have the larger cosine:
      log(1 + sum of exp((cosine of the other pair - its cosine) / temperature)) (CoSENT).
    - "classes": cross-entropy of a linear classifier of (u, v, |u - v|), where u and v are the vectors of a
      pair, with `num_labels` classes (Reimers and Gurevych 2019, section 3).

    The loss is the mean over the whole vector and vectors truncated to the leading dimensions in `sizes`
    (Kusupati et al. 2022, Matryoshka representations). The pooling of `classifier` makes the vectors.
    """

    config: EncoderConfig
    kind: str = CONTRASTIVE
    group: int = 2
    temperature: float = 0.05
    symmetric: bool = False
    sizes: tuple[int, ...] = ()
    num_labels: int = 0
    token_types: tuple[int, int] = TYPES
    classifier: ClassificationHead = SENTENCE

    @property
    def new_groups(self) -> tuple[str, ...]:
        return (CLASSIFIER,) if self.num_labels else ()

    def init(self, key: jax.Array) -> Params:
        params = super().init(key)
        if not self.num_labels:
            return params
        width = 3 * self.config.hidden_size
        kernel = kernel_init(self.config.initializer_range)(
            jax.random.fold_in(key, 1), (width, self.num_labels)
        )
        return params | {CLASSIFIER: {"kernel": nn.LogicallyPartitioned(kernel, ("embed", "classes"))}}

    def compare(self, params: Params, outputs: jax.Array, batch: Batch) -> tuple[Pairs, Pairs]:
        vectors, present = outputs, self.by_group("weights", batch)
        if "places" in batch:
            vectors = vectors.reshape(-1, vectors.shape[-1])[batch["places"]]
            vectors = vectors.reshape(*present.shape, -1)
        if self.kind == CLASSES:
            return self._classify(params[CLASSIFIER]["kernel"], vectors, present[:, 0], batch)
        found: list[tuple[Pairs, Pairs]] = []
        for size in (*self.sizes, vectors.shape[-1]):
            units = normalize(vectors[..., :size])
            if self.kind == CONTRASTIVE:
                found.append(self._contrast(units, batch))
                continue
            cosines = jnp.sum(units[:, 0] * units[:, 1], axis=-1)
            targets = self.by_group("targets", batch)[:, 0]
            found.append(({"task": cosent(cosines, targets, present[:, 0], self.temperature)}, {}))
        return jax.tree.map(lambda *sums: sum(sums) / len(sums), *found)

    def _classify(
        self, kernel: jax.Array, vectors: jax.Array, weights: jax.Array, batch: Batch
    ) -> tuple[Pairs, Pairs]:
        """Returns the cross-entropy and the accuracy of pair classification, from vectors [B, 2, H]."""
        first, second = vectors[:, 0], vectors[:, 1]
        logits = jnp.concatenate([first, second, jnp.abs(first - second)], axis=-1) @ kernel
        targets = self.by_group("targets", batch)[:, 0]
        loss = losses.cross_entropy(logits, targets, weights)
        return {"task": loss}, {"accuracy": losses.accuracy(logits, targets, weights)}

    def _contrast(self, units: jax.Array, batch: Batch) -> tuple[Pairs, Pairs]:
        """Returns InfoNCE over cosines and its accuracy, from unit vectors [B, K, H]."""
        anchors, others = units[:, 0], units[:, 1:].swapaxes(0, 1).reshape(-1, units.shape[-1])
        return self.contrast(jnp.matmul(anchors, others.T, precision=HIGHEST), batch)


def cosent(cosines: jax.Array, targets: jax.Array, weights: jax.Array, temperature: float) -> Pair:
    """Returns the CoSENT loss of a batch as (sum, weight): the one loss value, counted once per pair.

    All arrays are float32 [B], one value per pair: its cosine, its similarity on any scale, and a weight of
    1, or 0 for padding. The temperature 0.05 is the usual scale of 20.
    """
    differences = (cosines[:, None] - cosines) / temperature  # [i, j]: pair i minus pair j
    counted = (targets[:, None] < targets) & (weights[:, None] * weights > 0)
    logits = jnp.where(counted, differences, EXCLUDED)
    loss = jax.nn.logsumexp(jnp.append(logits.reshape(-1), 0.0))
    count = jnp.sum(weights)
    return loss * count, count
