"""Proof that a conversion changed nothing: what a file's tensors compute beside what the Flax model does.

The files' side is BERT's forward pass in NumPy by the tensors' own names and layouts. It uses neither the
table of names nor the Flax modules, so that no mistake of theirs cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erf

from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import param_mapping
from bert_jax.convert.model import Model
from bert_jax.errors import UserError
from bert_jax.models import Encoder, Pooler
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import MaskedLanguageModelHead

TOLERANCE = 2e-5  # of the largest output, or of 1
_ROWS, _LENGTH = 2, 24


def random_inputs(config: EncoderConfig) -> dict[str, np.ndarray]:
    """int32 [2, L] `input_ids`, `token_type_ids` and `mask`; the last row is padded by a third."""
    generator = np.random.default_rng(0)
    length = min(_LENGTH, config.max_position_embeddings)
    mask = np.ones((_ROWS, length), np.int32)
    mask[-1, length - length // 3 :] = 0
    ids = generator.integers(0, config.vocab_size, (_ROWS, length), np.int32)
    types = np.sort(generator.integers(0, config.type_vocab_size, (_ROWS, length), np.int32), axis=1)
    return {"input_ids": ids, "token_type_ids": types, "mask": mask}


def flax_outputs(model: Model) -> dict[str, np.ndarray]:
    """What the Flax model computes of `random_inputs`: `hidden`, and `pooled` and each head's logits where
    there are such. float32, padding left out.
    """
    config = model.config.replace(dtype="float32", attention="xla", remat="none")
    inputs = random_inputs(config)
    params = nest({name: jnp.asarray(array, jnp.float32) for name, array in model.params.items()})
    positions = np.broadcast_to(np.arange(inputs["mask"].shape[1]), inputs["mask"].shape)

    @jax.jit
    def forward(params):
        hidden = Encoder(config).apply(
            {"params": params["encoder"]},
            inputs["input_ids"],
            inputs["token_type_ids"],
            positions,
            inputs["mask"],
        )
        outputs = {"hidden": hidden}
        if "pooler" in params:
            outputs["pooled"] = Pooler(config).apply({"params": params["pooler"]}, hidden[:, 0])
        if "mlm" in params:
            words = params["encoder"]["embeddings"]["word_embeddings"]
            outputs["mlm"] = MaskedLanguageModelHead(config).apply({"params": params["mlm"]}, hidden, words)
        for head in ("nsp", "classifier", "qa"):
            if head in params:
                rows = outputs["pooled"] if head == "nsp" else hidden
                outputs[head] = rows @ params[head]["kernel"] + params[head]["bias"]
        return outputs

    with jax.default_matmul_precision("highest"):
        return _without_padding({name: np.asarray(x) for name, x in forward(params).items()}, inputs["mask"])


def file_outputs(
    tensors: Mapping[str, np.ndarray], config: EncoderConfig, kind: str
) -> dict[str, np.ndarray]:
    """`flax_outputs` of the tensors of a Hugging Face folder or a TF1 checkpoint."""
    inputs = random_inputs(config)
    at = (_HuggingFace if kind == param_mapping.HUGGINGFACE else _TensorFlow)(tensors)
    words = at.embedding("word_embeddings")
    x = words[inputs["input_ids"]] + at.embedding("token_type_embeddings")[inputs["token_type_ids"]]
    x = x + at.embedding("position_embeddings")[: x.shape[1]]
    x = at.norm(x, at.join("bert", "embeddings"), config.layer_norm_eps)
    visible = inputs["mask"][:, None, :, None] == inputs["mask"][:, None, None, :]
    if config.causal:
        visible = visible & np.tril(np.ones(visible.shape[-2:], bool))
    for number in range(config.num_hidden_layers):
        layer = at.layer(number)
        heads = [
            at.dense(x, at.join(layer, "attention", "self", name))
            .reshape(*x.shape[:2], config.num_attention_heads, -1)
            .transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        ]
        scores = heads[0] @ heads[1].swapaxes(2, 3) / math.sqrt(config.head_dim)
        scores = np.where(visible, scores, -1e9)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        context = (weights / weights.sum(axis=-1, keepdims=True)) @ heads[2]
        context = context.transpose(0, 2, 1, 3).reshape(x.shape)
        out = at.join(layer, "attention", "output")
        x = at.norm(x + at.dense(context, at.join(out, "dense")), out, config.layer_norm_eps)
        inner = _activation(config.hidden_act)(at.dense(x, at.join(layer, "intermediate", "dense")))
        out = at.join(layer, "output")
        x = at.norm(x + at.dense(inner, at.join(out, "dense")), out, config.layer_norm_eps)
    outputs = {"hidden": x}
    if at.has_dense(at.join("bert", "pooler", "dense")):
        outputs["pooled"] = np.tanh(at.dense(x[:, 0], at.join("bert", "pooler", "dense")))
    transform = at.join("cls", "predictions", "transform")
    if at.has_dense(at.join(transform, "dense")):
        y = _activation(config.hidden_act)(at.dense(x, at.join(transform, "dense")))
        outputs["mlm"] = at.norm(y, transform, config.layer_norm_eps) @ words.T + tensors[at.mlm_bias]
    for head, (weight, bias) in at.heads.items():
        if weight in tensors:
            rows = outputs["pooled"] if head == "nsp" else x
            outputs[head] = rows @ tensors[weight].T + tensors[bias]
    return _without_padding(outputs, inputs["mask"])


def compare(what: str, one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """The largest difference between outputs, as a part of the largest output or of 1.

    Raises:
        UserError: it is over `TOLERANCE`, or one has outputs that the other has not.
    """
    if one.keys() != other.keys():
        raise UserError(f"{what}: one side has {', '.join(one)} and the other {', '.join(other)}")
    differences = {
        name: float(np.max(np.abs(one[name] - other[name])) / max(1.0, np.max(np.abs(one[name]))))
        for name in one
    }
    worst = max(differences, key=lambda name: np.nan_to_num(differences[name], nan=np.inf))
    if not differences[worst] <= TOLERANCE:
        raise UserError(
            f"{what}: the results differ by {differences[worst]:.1e} in {worst}, more than {TOLERANCE:g}; "
            "the conversion is not to be trusted, and nothing is kept"
        )
    return differences[worst]


class _HuggingFace:
    mlm_bias = "cls.predictions.bias"
    heads: ClassVar = {
        "nsp": ("cls.seq_relationship.weight", "cls.seq_relationship.bias"),
        "classifier": ("classifier.weight", "classifier.bias"),
        "qa": ("qa_outputs.weight", "qa_outputs.bias"),
    }

    def __init__(self, tensors: Mapping[str, np.ndarray]):
        self._tensors = tensors

    def join(self, *parts: str) -> str:
        return ".".join(parts)

    def layer(self, number: int) -> str:
        return f"bert.encoder.layer.{number}"

    def embedding(self, name: str) -> np.ndarray:
        return self._tensors[f"bert.embeddings.{name}.weight"]

    def has_dense(self, name: str) -> bool:
        return f"{name}.weight" in self._tensors

    def dense(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]

    def norm(self, x: np.ndarray, module: str, epsilon: float) -> np.ndarray:
        name = f"{module}.LayerNorm"
        return _normalise(x, epsilon) * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]


class _TensorFlow:
    mlm_bias = "cls/predictions/output_bias"
    heads: ClassVar = {
        "nsp": ("cls/seq_relationship/output_weights", "cls/seq_relationship/output_bias"),
        "classifier": ("output_weights", "output_bias"),
        "qa": ("cls/squad/output_weights", "cls/squad/output_bias"),
    }

    def __init__(self, tensors: Mapping[str, np.ndarray]):
        self._tensors = tensors

    def join(self, *parts: str) -> str:
        return "/".join(parts)

    def layer(self, number: int) -> str:
        return f"bert/encoder/layer_{number}"

    def embedding(self, name: str) -> np.ndarray:
        return self._tensors[f"bert/embeddings/{name}"]

    def has_dense(self, name: str) -> bool:
        return f"{name}/kernel" in self._tensors

    def dense(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self._tensors[f"{name}/kernel"] + self._tensors[f"{name}/bias"]

    def norm(self, x: np.ndarray, module: str, epsilon: float) -> np.ndarray:
        name = f"{module}/LayerNorm"
        return _normalise(x, epsilon) * self._tensors[f"{name}/gamma"] + self._tensors[f"{name}/beta"]


def _normalise(x: np.ndarray, epsilon: float) -> np.ndarray:
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)


def _activation(name: str):
    return {
        "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
        "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "relu": lambda x: np.maximum(x, 0),
    }[name]


def _without_padding(outputs: Mapping[str, np.ndarray], mask: np.ndarray) -> dict[str, np.ndarray]:
    return {
        name: x[mask > 0] if x.shape[:2] == mask.shape and x.ndim == 3 else x for name, x in outputs.items()
    }
