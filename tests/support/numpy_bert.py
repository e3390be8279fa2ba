"""BERT's forward pass in NumPy, by the names and layouts that tensors have in files.

It uses neither the table of names nor the Flax modules, so that no mistake of theirs cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from scipy.special import erf

from bert_jax.convert import param_mapping
from bert_jax.convert.parity import random_inputs, without_padding
from bert_jax.models.config import EncoderConfig


def file_outputs(
    tensors: Mapping[str, np.ndarray], config: EncoderConfig, kind: str, head: str = ""
) -> dict[str, np.ndarray]:
    """Returns `parity.flax_outputs` of the tensors of a Hugging Face folder or a TF1 checkpoint.

    `head` is the model's: a classifier of texts reads what the pooler returns.
    """
    of_text = ["nsp"] + ["classifier"] * (head in ("sequence_classification", "multiple_choice"))
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
    for group, (weight, bias) in at.heads.items():
        if weight in tensors:
            rows = outputs["pooled"] if group in of_text else x
            outputs[group] = rows @ tensors[weight].T + tensors[bias]
    return without_padding(outputs, inputs["mask"])


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
        return _normalize(x, epsilon) * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]


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
        return _normalize(x, epsilon) * self._tensors[f"{name}/gamma"] + self._tensors[f"{name}/beta"]


def _normalize(x: np.ndarray, epsilon: float) -> np.ndarray:
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)


def _activation(name: str):
    return {
        "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
        "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "relu": lambda x: np.maximum(x, 0),
    }[name]
