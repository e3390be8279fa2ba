"""How sentence-transformers' CrossEncoder makes scores of a sequence classifier, as a folder says it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from bert_jax.convert import sentences
from bert_jax.io import files, json_files

_BEFORE_6, _BEFORE_4 = "sentence_transformers", "sbert_ce_default_activation_function"
_NAMED = {"activation_fn?": (str, None)}
_FIELDS = {f"{_BEFORE_6}?": (dict, None), f"{_BEFORE_4}?": (str, None)}


@dataclasses.dataclass(frozen=True)
class PairScores:
    """How a sequence classifier scores pairs of texts in sentence-transformers.

    Attributes:
        activation: the name of PyTorch's class that is applied to the outputs, such as
            "torch.nn.modules.linear.Identity"; "" for the sigmoid of a single output, and otherwise nothing.
        max_seq_length: number of tokens at which pairs are cut; 0 for the number of the model's positions.
    """

    activation: str = ""
    max_seq_length: int = 0

    def length(self, positions: int) -> int:
        """Returns the number of tokens at which pairs are cut in a model with this number of positions."""
        return min(self.max_seq_length or positions, positions)

    def fields(self) -> dict[str, Any]:
        """Returns the fields of config.json that every version since 4 reads."""
        return {_BEFORE_6: {"activation_fn": self.activation}} if self.activation else {}

    def described(self) -> list[str]:
        """Returns what differs from other classifiers, as parts of a message."""
        lost = [f"activation_fn={self.activation}"] if self.activation else []
        return lost + ([f"max_seq_length={self.max_seq_length}"] if self.max_seq_length else [])


def read(folder: str, fields: Mapping[str, Any], positions: int) -> PairScores:
    """Returns how the classifier of a Hugging Face folder scores pairs.

    Args:
        folder: the directory.
        fields: those of its config.json.
        positions: number of the model's positions.

    Raises:
        UserError: a field is of another type.
    """
    file = os.path.join(folder, sentences.PROMPTS)
    named = json_files.read(file, _NAMED) if sentences.PROMPTS in files.names(folder) else {}
    config = os.path.join(sentences.encoder_folder(folder), "config.json")
    json_files.check(
        {name: fields[name] for name in (_BEFORE_6, _BEFORE_4) if name in fields}, _FIELDS, config
    )
    older = fields.get(_BEFORE_6) or {}
    json_files.check(older, _NAMED, config, _BEFORE_6)
    activation = named.get("activation_fn") or older.get("activation_fn") or fields.get(_BEFORE_4) or ""
    length = sentences.read_length(folder, positions)
    return PairScores(activation, length if length < positions else 0)
