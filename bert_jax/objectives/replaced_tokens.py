"""Detection of replaced tokens (ELECTRA, Clark et al. 2020): two networks that are trained together.

A small masked LM, the generator, predicts the masked tokens, and a sample of each prediction replaces the
token. The second network sees the row with the samples, and tells for every token whether it is the original
one. Both read the same embedding tables and the same norm after them; a projection from E to H is each one's
own. No gradient passes through the samples.

The parameters are {"encoder", "discriminator", "generator": {"encoder", "mlm"}}, so that the discriminator is
stored as any other encoder. Its embeddings are those that both networks read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.errors import UserError
from bert_jax.models import PretrainingModel
from bert_jax.models.assembled import AssembledModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Computed, Objective, Pairs, Params, Predicted, Rngs
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking.replace import place_at

GENERATOR = "generator"  # the parameters that only the generator has
PROJECTION = "projection"  # the parameters of the embeddings that the networks do not share
_SAMPLES = 0x5A3B1E  # random stream of a row's samples, beside those of its masks
_IMPLEMENTATION = "threefry2x32"


def generator_config(config: EncoderConfig, hidden_size: int = 0) -> EncoderConfig:
    """Returns the architecture of the generator (section 3.2): narrower layers, as many, over equal tables.

    Args:
        config: architecture of the discriminator.
        hidden_size: width of the generator's layers, with I = 4 H and heads of 64, or the next larger size
            that divides it; 0 for a quarter of the discriminator's.
    """
    hidden_size = hidden_size or max(1, config.hidden_size // 4)
    heads = next(number for number in range(max(1, hidden_size // 64), 0, -1) if not hidden_size % number)
    return config.replace(
        hidden_size=hidden_size,
        num_attention_heads=heads,
        intermediate_size=4 * hidden_size,
        embedding_size=config.embedding_width,
        embedding_projection=False,
        # An adapter is for the network that is kept.
        attention_adapter=0,
        output_adapter=0,
    )


def generator_params(params: Params) -> Params:
    """Returns the parameters {"encoder", "mlm"} of the generator from those of both networks."""
    own = params[GENERATOR]
    shared = {name: x for name, x in params["encoder"]["embeddings"].items() if name != PROJECTION}
    embeddings = {**shared, **own["encoder"].get("embeddings", {})}
    return {**own, "encoder": {**own["encoder"], "embeddings": embeddings}}


def uniform_noise(keys: jax.Array, predictions: int, vocab_size: int) -> jax.Array:
    """Returns float32 [B, P, V] in [0, 1), from the raw key uint32 [B, 2] of each row."""

    def of_row(key):
        key = jax.random.wrap_key_data(key, impl=_IMPLEMENTATION)
        return jax.random.uniform(key, (predictions, vocab_size), jnp.float32)

    return jax.vmap(of_row)(keys)


def sample(logits: jax.Array, uniform: jax.Array, temperature: float = 1.0) -> jax.Array:
    """Returns a sample int32 [B, P] of softmax(logits / temperature), by the Gumbel-max trick.

    Args:
        logits: float [B, P, V]; no gradient passes.
        uniform: float32 [B, P, V] in [0, 1).
        temperature: above 0.
    """
    noise = -jnp.log(-jnp.log(uniform + 1e-9) + 1e-9)
    logits = jax.lax.stop_gradient(logits).astype(jnp.float32)
    return jnp.argmax(logits / temperature + noise, axis=-1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class ReplacedTokens(Objective):
    """Trains a generator and a discriminator, or a network of another variant (section 3.4, table 5).

    Attributes:
        config: architecture of the discriminator.
        generator: objective of the generator, which draws the masks; see `generator_config`.
        variant: a name in `VARIANTS`.
        weight: factor of the discriminator's loss (lambda in the paper).
        temperature: of the samples.
        disallow_correct: whether the generator never samples the original token.
    """

    config: EncoderConfig
    generator: MaskedLM
    variant: str = "electra"
    weight: float = 50.0
    temperature: float = 1.0
    disallow_correct: bool = False

    def __post_init__(self):
        if self.variant not in VARIANTS:
            raise UserError(
                f"replaced_tokens.variant={self.variant!r} is unknown; choose one of {', '.join(VARIANTS)}"
            )
        if self.generator.next_sentence_head:
            raise ValueError("a generator has no next-sentence head")

    @property
    def _variant(self) -> Variant:
        return VARIANTS[self.variant]

    @property
    def scales(self) -> Mapping[str, float]:
        """Returns `weight` for the loss of the discriminator."""
        return {"discriminator": self.weight} if self._variant.name == "discriminator" else {}

    @property
    def initial_loss(self) -> float | None:
        """Returns the sum of the expected losses of both networks, None for "all_tokens_mlm"."""
        if self.variant == "all_tokens_mlm":
            return None
        others = {
            "discriminator": self.weight * math.log(2),
            "mlm": self.generator.head.initial_loss(self.config),
        }
        return self.generator.initial_loss + others[self._variant.name]

    @property
    def model(self) -> Any:
        """Returns the second network."""
        return self._variant.model(self.config, self.generator.head)

    def init(self, key: jax.Array) -> Params:
        """Returns new parameters of both networks."""
        first, second = jax.random.split(key)
        ids = jnp.zeros((1, 8), jnp.int32)
        more = [ids[:, :1]] * 2 if isinstance(self.model, PretrainingModel) else []
        params = self.model.init(first, ids, ids, ids, ids, *more)["params"]
        own = self.generator.init(second)
        embeddings = {name: x for name, x in own["encoder"]["embeddings"].items() if name == PROJECTION}
        encoder = {name: x for name, x in own["encoder"].items() if name != "embeddings"}
        return {
            **params,
            GENERATOR: {**own, "encoder": encoder | ({"embeddings": embeddings} if embeddings else {})},
        }

    def at_step(self, batch: Batch, step: jax.Array) -> Batch:
        """Returns the batch with what the generator's masks need of the step."""
        return self.generator.at_step(batch, step)

    def prepare(self, batch: Batch, key: jax.Array, train: bool) -> Batch:
        """Unpacks the rows, draws their masks, and gives each row the key of its samples."""
        prepared = self.generator.prepare(batch, key, train)
        masked = [prepared[f"masked_{name}"] for name in ("positions", "labels", "weights")]
        keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.fold_in(key, row), _SAMPLES))(
            batch["row_ids"]
        )
        real = (prepared["sequence_ids"] > 0).astype(jnp.float32)
        hidden = place_at(jnp.zeros_like(real), masked[0], jnp.ones_like(masked[2]), masked[2])
        return prepared | {
            "original_ids": place_at(prepared["input_ids"], *masked),
            "sample_keys": jax.random.key_data(keys),
            "counted": real if self._variant.every_token else hidden,
        }

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the numbers of masked tokens, and of the tokens that the second network is asked about."""
        return {"generator": jnp.sum(batch["masked_weights"]), self._variant.name: jnp.sum(batch["counted"])}

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        """Returns the losses of both networks, their accuracies, and the share of replaced tokens."""
        first, second = (
            None if rngs is None else {name: jax.random.fold_in(key, network) for name, key in rngs.items()}
            for network in range(2)
        )
        inputs = (batch[name] for name in (*INPUTS, "masked_positions", "cls_positions"))
        logits = self.generator.model.apply(
            {"params": generator_params(params)}, *inputs, deterministic=first is None, rngs=first
        )[0]
        labels, weights = batch["masked_labels"], batch["masked_weights"]
        ids = self._replaced(logits, batch)
        replaced = (ids != batch["original_ids"]).astype(jnp.float32)
        seen = batch | {"input_ids": ids, "replaced": replaced}
        own = {name: x for name, x in params.items() if name != GENERATOR}
        pair, metrics = self._variant.loss(self.model, own, seen, second)
        tokens = jnp.sum(batch["sequence_ids"] > 0).astype(jnp.float32)
        return (
            {"generator": losses.cross_entropy(logits, labels, weights), self._variant.name: pair},
            {
                "generator_accuracy": losses.accuracy(logits, labels, weights),
                "replaced_share": (jnp.sum(replaced), tokens),
                **metrics,
            },
        )

    def computed(self, left_to_right: bool = False) -> Sequence[Computed]:
        """Returns the discriminator and the generator, neither with a next-sentence head."""
        predicted = Predicted.EVERY if self.variant == "all_tokens_mlm" else Predicted.MASKED
        return (
            Computed(self, predicted, has_sequences=False),
            Computed(self.generator, has_sequences=False, prefix=f"{GENERATOR}/"),
        )

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the probabilities that the generator predicts."""
        return self.generator.predict(generator_params(params), batch)

    def _replaced(self, logits: jax.Array, batch: Batch) -> jax.Array:
        """Returns the row [B, L] with samples of the generator at the masked positions."""
        labels = batch["masked_labels"]
        if self.disallow_correct:
            logits = logits - 1000.0 * jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        noise = uniform_noise(batch["sample_keys"], *logits.shape[1:])
        samples = sample(logits, noise, self.temperature)
        return place_at(batch["original_ids"], batch["masked_positions"], samples, batch["masked_weights"])


def _inputs(batch: Batch, *more: str) -> list[jax.Array]:
    return [batch[name] for name in (*INPUTS, *more)]


def _discriminator(model, params, batch, rngs):
    """Returns the loss of telling replaced tokens from original ones; a right guess is an original one."""
    logits = model.apply({"params": params}, *_inputs(batch), deterministic=rngs is None, rngs=rngs)[
        "discriminator"
    ]
    replaced, counted = batch["replaced"], batch["counted"]
    found = (logits > 0).astype(jnp.float32)
    both = jnp.sum(found * replaced * counted)
    metrics = {
        "discriminator_accuracy": (
            jnp.sum((found == replaced).astype(jnp.float32) * counted),
            jnp.sum(counted),
        ),
        "discriminator_precision": (both, jnp.sum(found * counted)),
        "discriminator_recall": (both, jnp.sum(replaced * counted)),
    }
    return losses.binary_cross_entropy(logits[..., None], replaced[..., None], counted), metrics


def _replace_mlm(model, params, batch, rngs):
    """Returns the masked LM loss where samples of the generator stand instead of [MASK]."""
    logits = model.apply(
        {"params": params},
        *_inputs(batch, "masked_positions", "cls_positions"),
        deterministic=rngs is None,
        rngs=rngs,
    )[0]
    head = (logits, batch["masked_labels"], batch["masked_weights"])
    return losses.cross_entropy(*head), {"mlm_accuracy": losses.accuracy(*head)}


def _all_tokens_mlm(model, params, batch, rngs):
    """Returns the loss of predicting every token, with a gate D that copies the input.

    The probability of the original token is D [it is the input] + (1 - D) p, with D = sigmoid of one logit.
    """
    outputs = model.apply({"params": params}, *_inputs(batch), deterministic=rngs is None, rngs=rngs)
    log_p = jax.nn.log_softmax(outputs["mlm"].astype(jnp.float32))
    log_p = jnp.take_along_axis(log_p, batch["original_ids"][..., None], axis=-1)[..., 0]
    gate = outputs["discriminator"].astype(jnp.float32)
    generated = jax.nn.log_sigmoid(-gate) + log_p
    copied = jnp.logaddexp(jax.nn.log_sigmoid(gate), generated)
    log_likelihood = jnp.where(batch["replaced"] > 0, generated, copied)
    counted = batch["counted"]
    return (-jnp.sum(log_likelihood * counted), jnp.sum(counted)), {}


@dataclasses.dataclass(frozen=True)
class Variant:
    """What the second network learns.

    Attributes:
        name: name of its loss.
        model: function (configuration, masked LM head) that returns the network.
        loss: function (network, parameters, batch, rngs) that returns its loss and metrics.
        every_token: whether it is asked about every token, or about the masked ones alone.
    """

    name: str
    model: Callable[..., Any]
    loss: Callable[..., tuple[losses.Pair, Pairs]]
    every_token: bool


def _assembled(*groups: str) -> Callable[..., Any]:
    return lambda config, head: AssembledModel(config, ("encoder", *groups), masked_lm=head)


VARIANTS: dict[str, Variant] = {
    "electra": Variant("discriminator", _assembled("discriminator"), _discriminator, True),
    "electra_15": Variant("discriminator", _assembled("discriminator"), _discriminator, False),
    "replace_mlm": Variant(
        "mlm", lambda config, head: PretrainingModel(config, head, False), _replace_mlm, False
    ),
    "all_tokens_mlm": Variant("mlm", _assembled("mlm", "discriminator"), _all_tokens_mlm, True),
}
