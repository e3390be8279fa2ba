"""Replaced token detection (ELECTRA, Clark et al. 2020): two networks that are trained together.

A small masked LM, the generator, predicts the masked tokens, and each is replaced by a sample from its
prediction. The discriminator reads the resulting row and classifies every token as original or replaced. No
gradient passes through the samples.

In ELECTRA both networks share the embedding tables and the norm after them; each has its own projection from
E to H. DeBERTa v3 (He et al. 2021, 2111.09543, section 3.3) shares word embeddings without their gradient:
the discriminator's table is stop_gradient(E_G) + D, where E_G is the generator's table and D is initialized
to 0 (gradient-disentangled embedding sharing). Only masked LM then trains the generator, and one step on both
losses equals a generator step followed by a discriminator step on its samples.

The parameters are {"encoder", "discriminator", "generator": {"encoder", "mlm"}}, so the discriminator is
stored like any other encoder, except for D, which has its own name (see `adapters.assemble`). Shared
embeddings are stored with the discriminator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.models.assembled import AssembledModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import REPLACED_TOKENS, ReplacedTokensHead
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives import losses
from bert_jax.objectives.adapters import DIFFERENCE, assemble
from bert_jax.objectives.adapters import GENERATOR as GENERATOR
from bert_jax.objectives.base import Batch, Objective, Pairs, Params, Rngs
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import place_at

PROJECTION = "projection"  # the parameters of the embeddings that the networks do not share
_SAMPLES = 0x5A3B1E  # random stream of a row's samples
_IMPLEMENTATION = "threefry2x32"
_TABLE = "encoder/embeddings/word_embeddings"


def generator_config(config: EncoderConfig, hidden_size: int = 0, layers: int = 0) -> EncoderConfig:
    """Returns the generator's architecture (section 3.2): narrower or fewer layers, tables of equal size.

    By default, its width H is a quarter of the discriminator's, and it has as many layers. I is 4 H, and
    heads have size 64 or the next larger size that divides H. Disentangled attention has no position
    embeddings, so it gets the mask decoder, as in DeBERTa v3.
    """
    hidden_size = hidden_size or max(1, config.hidden_size // 4)
    heads = next(number for number in range(max(1, hidden_size // 64), 0, -1) if not hidden_size % number)
    return config.replace(
        hidden_size=hidden_size,
        num_hidden_layers=layers or config.num_hidden_layers,
        mask_decoder=config.position == "disentangled",
        num_attention_heads=heads,
        intermediate_size=4 * hidden_size,
        embedding_size=config.embedding_width,
        attention_adapter=0,  # adapters are for the discriminator
        output_adapter=0,
    )


def has_own_table(params: Params) -> bool:
    """Returns whether the parameters include a generator with its own word embeddings."""
    return any(name == f"{GENERATOR}/{_TABLE}" for name in flatten_dict(params, sep="/"))


def generator_params(params: Params) -> Params:
    """Returns the generator's parameters, {"encoder", "mlm"}, from the parameters of both networks."""
    own = params[GENERATOR]
    if has_own_table(params):
        return own
    shared = {name: x for name, x in params["encoder"]["embeddings"].items() if name != PROJECTION}
    embeddings = {**shared, **own["encoder"].get("embeddings", {})}
    return {**own, "encoder": {**own["encoder"], "embeddings": embeddings}}


def uniform_noise(keys: jax.Array, predictions: int, vocab_size: int) -> jax.Array:
    """Returns float32 [B, P, V] in [0, 1), from one raw key per row, uint32 [B, 2]."""

    def of_row(key):
        key = jax.random.wrap_key_data(key, impl=_IMPLEMENTATION)
        return jax.random.uniform(key, (predictions, vocab_size), jnp.float32)

    return jax.vmap(of_row)(keys)


def sample(logits: jax.Array, uniform: jax.Array) -> jax.Array:
    """Returns samples int32 [B, P] from softmax(logits), by the Gumbel-max trick; no gradient passes.

    The logits are float [B, P, V], and `uniform` is float32 [B, P, V] in [0, 1).
    """
    noise = -jnp.log(-jnp.log(uniform + 1e-9) + 1e-9)
    logits = jax.lax.stop_gradient(logits).astype(jnp.float32)
    return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class ReplacedTokens(Objective):
    """Trains a generator and a discriminator."""

    config: EncoderConfig  # of the discriminator
    generator: MaskedLM  # which samples the masks; see `generator_config`
    weight: float = 50.0  # factor of the discriminator's loss (lambda in the paper)
    sharing: str = "all"  # "all" embeddings; "gdes", the word embeddings without their gradient; or "none"
    head: ReplacedTokensHead = REPLACED_TOKENS

    @property
    def scales(self) -> Mapping[str, float]:
        return {"discriminator": self.weight}

    @property
    def encoders(self) -> Mapping[str, EncoderConfig]:
        return {"": self.config, f"{GENERATOR}/": self.generator.config}

    @property
    def model(self) -> Any:
        return AssembledModel(self.config, ("encoder", "discriminator"), replaced_tokens=self.head)

    def init(self, key: jax.Array) -> Params:
        return self.split(self.init_model(key))[0]

    def init_model(self, key: jax.Array) -> Params:
        first, second = jax.random.split(key)
        ids = jnp.zeros((1, 8), jnp.int32)
        params = self.model.init(first, ids, ids, ids, ids)["params"]
        own = self.generator.init(second)
        if self.sharing != "all":
            flat = flatten_dict({**params, GENERATOR: own}, sep="/")
            if self.sharing == "gdes":
                flat[_TABLE] = flat[f"{GENERATOR}/{_TABLE}"]
            return unflatten_dict(flat, sep="/")
        embeddings = {name: x for name, x in own["encoder"]["embeddings"].items() if name == PROJECTION}
        encoder = {name: x for name, x in own["encoder"].items() if name != "embeddings"}
        encoder |= {"embeddings": embeddings} if embeddings else {}
        return {**params, GENERATOR: {**own, "encoder": encoder}}

    def split(self, params: Params) -> tuple[Params, None]:
        """Returns the parameters, with the discriminator's table as its difference from the generator's.

        If a checkpoint has only a discriminator, the generator starts with the discriminator's table.
        """
        flat = flatten_dict(params, sep="/")
        if self.sharing == "gdes" and _TABLE in flat:
            table = flat.pop(_TABLE)
            of_generator = flat.setdefault(f"{GENERATOR}/{_TABLE}", table)
            flat[_TABLE + DIFFERENCE] = jax.tree.map(jnp.subtract, table, of_generator)
        return unflatten_dict(flat, sep="/"), None

    def join(self, params: Params, frozen: Params | None) -> Params:
        return unflatten_dict(assemble(flatten_dict(params, sep="/")), sep="/")

    def prepare(self, batch: Batch, key: jax.Array, train: bool) -> Batch:
        """Unpacks the rows, samples their masks, and gives each row the key of its samples."""
        prepared = self.generator.prepare(batch, key, train)
        masked = [prepared[f"masked_{name}"] for name in ("positions", "labels", "weights")]
        keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.fold_in(key, row), _SAMPLES))(
            batch["row_ids"]
        )
        return prepared | {
            "original_ids": place_at(prepared["input_ids"], *masked),
            "sample_keys": jax.random.key_data(keys),
        }

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the numbers of masked tokens and of all tokens."""
        return {"generator": jnp.sum(batch["masked_weights"]), "discriminator": jnp.sum(_real(batch))}

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        """Returns the losses of both networks, their accuracies, and the fraction of replaced tokens."""
        first, second = (
            None if rngs is None else {name: jax.random.fold_in(key, network) for name, key in rngs.items()}
            for network in range(2)
        )
        inputs = (batch[name] for name in (*INPUTS, "masked_positions", "cls_positions"))
        logits = self.generator.model.apply(
            {"params": generator_params(params)}, *inputs, deterministic=first is None, rngs=first
        )[0]
        labels, weights, positions = (batch[f"masked_{x}"] for x in ("labels", "weights", "positions"))
        noise = uniform_noise(batch["sample_keys"], *logits.shape[1:])
        samples = sample(logits, noise)
        ids = place_at(batch["original_ids"], positions, samples, weights)
        replaced = (ids != batch["original_ids"]).astype(jnp.float32)

        own = {name: x for name, x in params.items() if name != GENERATOR}
        inputs = ((batch | {"input_ids": ids})[name] for name in INPUTS)
        options = {"cls_positions": batch["cls_positions"], "deterministic": second is None, "rngs": second}
        decisions = self.model.apply({"params": own}, *inputs, **options)["discriminator"]
        real = _real(batch)
        tokens = jnp.sum(real)
        positive = (decisions > 0).astype(jnp.float32)
        true_positive = jnp.sum(positive * replaced * real)
        hits = jnp.sum((positive == replaced).astype(jnp.float32) * real)
        return (
            {
                "generator": losses.cross_entropy(logits, labels, weights),
                "discriminator": losses.binary_cross_entropy(decisions[..., None], replaced[..., None], real),
            },
            {
                "generator_accuracy": losses.accuracy(logits, labels, weights),
                "replaced_share": (jnp.sum(replaced), tokens),
                "discriminator_accuracy": (hits, tokens),
                "discriminator_precision": (true_positive, jnp.sum(positive * real)),
                "discriminator_recall": (true_positive, jnp.sum(replaced * real)),
            },
        )

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        return self.generator.predict(generator_params(params), batch)


def _real(batch: Batch) -> jax.Array:
    """Returns float32 [B, L], 1 for real tokens and 0 for padding."""
    return (batch["sequence_ids"] > 0).astype(jnp.float32)
