"""A complete model built from its parameter groups: the encoder and the heads that a checkpoint has."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from bert_jax.models.config import EncoderConfig, Execution
from bert_jax.models.encoder import Encoder, Pooler
from bert_jax.models.heads import POOLINGS, TOKENS, ClassificationHead, MaskedLanguageModelHead
from bert_jax.models.layers import Module
from bert_jax.models.parameters import abstract, layer_axes, parameter_shapes


class AssembledModel(Module):
    """The encoder with any set of heads.

    Attributes:
        groups: names of the parameter groups: "encoder", "pooler", "mlm", "nsp", "classifier", "qa", and
            "head", which is the dense layer of a classifier that does not use the pooler.
        classes: number of outputs of `classifier`.
        classification: structure of the classification head.
    """

    groups: tuple[str, ...] = ("encoder",)
    classes: int = 2
    classification: ClassificationHead = TOKENS

    def setup(self):
        head = self.classification
        self.encoder = Encoder(self.config)
        if "pooler" in self.groups:
            self.pooler = Pooler(self.config)
        if "mlm" in self.groups:
            self.mlm = MaskedLanguageModelHead(self.config)
        if "head" in self.groups:
            # The attribute is not called `head`, which in models with one head is the head's description.
            self.between = Pooler(self.config, head.activation, head.dense_bias, head.norm, name="head")
        if "nsp" in self.groups:
            self.nsp = self.dense(None, (2,), ("embed",), ("classes",))
        if "classifier" in self.groups:
            self.classifier = self.dense(
                None, (self.classes,), ("embed",), ("classes",), use_bias=head.out_bias
            )
        if "qa" in self.groups:
            self.qa = self.dense(None, (2,), ("embed",), ("classes",))

    def __call__(self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True):
        """Returns a dictionary with the outputs of each part, as arrays in the dtype of `config`.

        `hidden` is [B, L, H]. `pooled` [B, H] and `nsp` [B, 2] are computed from the first token, `mlm`
        [B, L, V] and `qa` [B, L, 2] from every token. `classifier` is [B, classes], or [B, L, classes]
        without pooling.

        Args:
            input_ids: int32 [B, L]; see `Encoder` for this and the other inputs.
            token_type_ids: int32 [B, L].
            position_ids: int32 [B, L].
            sequence_ids: int32 [B, L].
            deterministic: whether dropout is disabled. Dropout needs the key `dropout` in `rngs`.
        """
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic)
        outputs = {"hidden": hidden}
        if "pooler" in self.groups:
            outputs["pooled"] = self.pooler(hidden[:, 0])
        if "mlm" in self.groups:
            outputs["mlm"] = self.mlm(hidden, self.encoder.embeddings.word)
        if "nsp" in self.groups:
            outputs["nsp"] = self.nsp(outputs["pooled"])
        if "classifier" in self.groups:
            outputs["classifier"] = self.classify(hidden, sequence_ids, deterministic)
        if "qa" in self.groups:
            outputs["qa"] = self.qa(hidden)
        return outputs

    def classify(self, hidden, sequence_ids, deterministic=True):
        """Returns the classifier's logits for hidden states [B, L, H]."""
        head = self.classification
        x = self.drop(head.drop_in, POOLINGS[head.pooling](hidden, sequence_ids, None), deterministic)
        if head.dense == "pooler":
            x = self.pooler(x)
        elif head.dense == "head":
            x = self.between(x)
        return self.classifier(self.drop(head.drop_out, x, deterministic))

    def drop(self, rate, x, deterministic):
        """Applies dropout to x; a rate of None means `hidden_dropout_prob`."""
        rate = self.config.hidden_dropout_prob if rate is None else rate
        return self.dropout(rate, deterministic)(x)


class Parameter(NamedTuple):
    """Shape of a parameter, and whether its first axis is the layer axis."""

    shape: tuple[int, ...]
    layered: bool


def parameters(
    config: EncoderConfig,
    groups: tuple[str, ...],
    classes: int = 2,
    classification: ClassificationHead = TOKENS,
) -> Mapping[str, Parameter]:
    """Returns {name: `Parameter`} of a model without computing any parameter.

    Args:
        config: configuration of the encoder.
        groups: names of the parameter groups, see `AssembledModel`.
        classes: number of outputs of `classifier`.
        classification: structure of the classification head.
    """
    return _parameters(config.replace(execution=Execution()), groups, classes, classification)


@functools.lru_cache(maxsize=64)
def _parameters(config, groups, classes, classification):
    boxed = abstract(AssembledModel(config, groups, classes, classification))
    axes = layer_axes(boxed)
    return {
        name: Parameter(shape, name in axes)
        for name, shape in parameter_shapes(boxed).items()
        if name.split("/")[0] in groups
    }


def shapes(
    config: EncoderConfig,
    groups: tuple[str, ...],
    classes: int = 2,
    classification: ClassificationHead = TOKENS,
) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of the model's parameters; see `parameters` for the arguments."""
    return {name: x.shape for name, x in parameters(config, groups, classes, classification).items()}
