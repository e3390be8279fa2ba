"""A whole model from its groups of parameters: the encoder and whatever heads a checkpoint has."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.config import EXECUTION_FIELDS, EncoderConfig
from bert_jax.models.encoder import Encoder, Pooler, _Module
from bert_jax.models.heads import MaskedLanguageModelHead


class AssembledModel(_Module):
    """The encoder with any set of heads, each computed wherever it may be asked for.

    Attributes:
        groups: names of the groups of parameters: "encoder", "pooler", "mlm", "nsp", "classifier", "qa".
        classes: number of outputs of `classifier`.
    """

    groups: tuple[str, ...] = ("encoder",)
    classes: int = 2

    def setup(self):
        self.encoder = Encoder(self.config)
        if "pooler" in self.groups:
            self.pooler = Pooler(self.config)
        if "mlm" in self.groups:
            self.mlm = MaskedLanguageModelHead(self.config)
        for name, outputs in (("nsp", 2), ("classifier", self.classes), ("qa", 2)):
            if name in self.groups:
                setattr(self, name, self.dense(None, (outputs,), ("embed",), ("classes",)))

    def __call__(self, input_ids, token_type_ids, position_ids, sequence_ids):
        """Returns the outputs of each part, as arrays in the dtype of `config`.

        `hidden` is [B, L, H]; `pooled` [B, H] and `nsp` [B, 2] are of the first token; `mlm` [B, L, V],
        `classifier` [B, L, classes] and `qa` [B, L, 2] are of every token.

        Args:
            input_ids: int32 [B, L]; see `Encoder` for this and the others.
            token_type_ids: int32 [B, L].
            position_ids: int32 [B, L].
            sequence_ids: int32 [B, L].
        """
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids)
        outputs = {"hidden": hidden}
        if "pooler" in self.groups:
            outputs["pooled"] = self.pooler(hidden[:, 0])
        if "mlm" in self.groups:
            outputs["mlm"] = self.mlm(hidden, self.encoder.embeddings.word)
        if "nsp" in self.groups:
            outputs["nsp"] = self.nsp(outputs["pooled"])
        if "classifier" in self.groups:
            outputs["classifier"] = self.classifier(hidden)
        if "qa" in self.groups:
            outputs["qa"] = self.qa(hidden)
        return outputs


class Parameter(NamedTuple):
    """Shape of a parameter, and whether its first axis is the layer."""

    shape: tuple[int, ...]
    layered: bool


def parameters(config: EncoderConfig, groups: tuple[str, ...], classes: int = 2) -> Mapping[str, Parameter]:
    """Returns the parameters of a model by their flat names, without computing any.

    Args:
        config: the architecture.
        groups: see `AssembledModel`.
        classes: number of outputs of `classifier`.
    """
    default = EncoderConfig()
    return _parameters(
        config.replace(**{name: getattr(default, name) for name in EXECUTION_FIELDS}), groups, classes
    )


@functools.lru_cache(maxsize=64)
def _parameters(config, groups, classes):
    ids = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    model = AssembledModel(config, groups, classes)
    boxed = jax.eval_shape(model.init, jax.random.key(0), ids, ids, ids, ids)["params"]
    leaves, _ = jax.tree_util.tree_flatten_with_path(boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))
    return {
        "/".join(key.key for key in path): Parameter(tuple(leaf.value.shape), leaf.names[0] == "layers")
        for path, leaf in leaves
        if path[0].key in groups
    }


def shapes(config: EncoderConfig, groups: tuple[str, ...], classes: int = 2) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of `parameters`."""
    return {name: one.shape for name, one in parameters(config, groups, classes).items()}
