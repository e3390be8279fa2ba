"""A complete model built from its parameter groups: the encoder and the heads that a checkpoint has."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.models.config import EncoderConfig, Execution
from bert_jax.models.encoder import Encoder, Pooler
from bert_jax.models.heads import classification
from bert_jax.models.heads.pretraining import MaskedLanguageModelHead, ReplacedTokenHead
from bert_jax.models.heads.structures import (
    MASKED_LM,
    REPLACED_TOKENS,
    TOKENS,
    ClassificationHead,
    MaskedLMHead,
    ReplacedTokensHead,
)
from bert_jax.models.layers import Module, identity
from bert_jax.models.parameters import abstract, layer_axes, parameter_shapes


class AssembledModel(Module):
    """The encoder with any set of heads.

    The groups of parameters are "encoder", "pooler", "mlm", "nsp", "discriminator", "classifier", "qa", and
    "head", which is the dense layer of a classifier that does not use the pooler.
    """

    groups: tuple[str, ...] = ("encoder",)
    classes: int = 2  # outputs of `classifier`
    classification: ClassificationHead = TOKENS  # whose output layer is "classifier" or "qa"
    masked_lm: MaskedLMHead = MASKED_LM
    replaced_tokens: ReplacedTokensHead = REPLACED_TOKENS

    def setup(self):
        head = self.classification
        self.encoder = Encoder(self.config)
        if "pooler" in self.groups:
            self.pooler = Pooler(self.config)
        if "mlm" in self.groups:
            self.mlm = MaskedLanguageModelHead(self.config, self.masked_lm)
        if "discriminator" in self.groups:
            self.discriminator = ReplacedTokenHead(self.config, self.replaced_tokens)
        if "head" in self.groups:
            # The attribute is not called `head`, because `head` describes the head in models with one head.
            self.between = Pooler(self.config, head.activation, head.dense_bias, head.norm, name="head")
        if "nsp" in self.groups:
            self.nsp = self.dense(None, (2,), ("embed",), ("classes",))
        if "classifier" in self.groups:
            self.classifier = self.dense(
                None, (self.classes,), ("embed",), ("classes",), use_bias=head.out_bias
            )
        if "qa" in self.groups:
            self.qa = self.dense(None, (2,), ("embed",), ("classes",))

    def __call__(
        self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True, cls_positions=None
    ):
        """Returns a dictionary with the outputs of each part, as arrays in the dtype of `config`.

        `hidden` is [B, L, H]. `pooled` [B, H] and `nsp` [B, 2] are computed from the first token, `mlm`
        [B, L, V] and `qa` [B, L, 2] from every token. `classifier` is [B, classes], or [B, L, classes]
        without pooling. `discriminator` is [B, L]. In rows of several sequences, it reads their first tokens
        at `cls_positions` [B, S]. The other inputs are as in `Encoder`. Dropout needs the key `dropout` in
        `rngs`.
        """
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic)
        outputs = {"hidden": hidden}
        if "pooler" in self.groups:
            outputs["pooled"] = self.pooler(hidden[:, 0])
        if "mlm" in self.groups:
            states = hidden
            if self.config.mask_decoder:
                inputs = (input_ids, token_type_ids, position_ids, sequence_ids)
                states = self.encoder(*inputs, deterministic, for_masks=True)
            outputs["mlm"] = self.mlm(states, self.encoder.embeddings.word)
        if "discriminator" in self.groups:
            outputs["discriminator"] = self.discriminator(hidden, sequence_ids, cls_positions)
        if "nsp" in self.groups:
            outputs["nsp"] = self.nsp(outputs["pooled"])
        for name in ("classifier", "qa"):
            if name == self.classification.name and name in self.groups:
                outputs[name] = self.classify(hidden, sequence_ids, deterministic)
            elif name in self.groups:
                outputs[name] = getattr(self, name)(hidden)
        return outputs

    def classify(self, hidden, sequence_ids, deterministic=True):
        """Returns the logits of the head `classification` for hidden states [B, L, H]."""
        head, between = self.classification, identity
        if head.dense != "none":
            between = self.pooler if head.dense == "pooler" else self.between
        output = getattr(self, head.name)
        return classification.logits(self, head, between, output, hidden, sequence_ids, deterministic)


class Parameter(NamedTuple):
    """Shape of a parameter, and whether its first axis is the layer axis."""

    shape: tuple[int, ...]
    layered: bool


def parameters(model: AssembledModel) -> Mapping[str, Parameter]:
    """Returns {name: `Parameter`} of a model without computing any parameter."""
    return _parameters(model.clone(config=model.config.replace(**dataclasses.asdict(Execution()))))


@functools.lru_cache(maxsize=64)
def _parameters(model: AssembledModel) -> Mapping[str, Parameter]:
    boxed = abstract(model)
    axes = layer_axes(boxed)
    return {
        name: Parameter(shape, name in axes)
        for name, shape in parameter_shapes(boxed).items()
        if name.split("/")[0] in model.groups
    }


def shapes(config: EncoderConfig, groups: tuple[str, ...], *heads: Any) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of the parameters of an `AssembledModel` with these fields."""
    return {name: x.shape for name, x in parameters(AssembledModel(config, groups, *heads)).items()}
