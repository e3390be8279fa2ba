"""A whole model from its groups of parameters: the encoder and whatever heads a checkpoint has."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from bert_jax.models.config import EncoderConfig, Execution
from bert_jax.models.encoder import Encoder, Pooler
from bert_jax.models.heads import MaskedLanguageModelHead
from bert_jax.models.layers import Module
from bert_jax.models.parameters import abstract, layer_axes, parameter_shapes


class AssembledModel(Module):
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
    return _parameters(config.replace(execution=Execution()), groups, classes)


@functools.lru_cache(maxsize=64)
def _parameters(config, groups, classes):
    boxed = abstract(AssembledModel(config, groups, classes))
    axes = layer_axes(boxed)
    return {
        name: Parameter(shape, name in axes)
        for name, shape in parameter_shapes(boxed).items()
        if name.split("/")[0] in groups
    }


def shapes(config: EncoderConfig, groups: tuple[str, ...], classes: int = 2) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of `parameters`."""
    return {name: one.shape for name, one in parameters(config, groups, classes).items()}
