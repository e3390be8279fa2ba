"""What records are a function of: the flags of `bert-jax data`, and the settings that a manifest holds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

from bert_jax import tokenization
from bert_jax.data import packed
from bert_jax.errors import UserError
from data_pipelines import pairs, readers


@dataclasses.dataclass(frozen=True)
class Options:
    """What the records depend on; see the flags of `bert-jax data`."""

    input: tuple[str, ...]
    vocab: str
    output_dir: str
    input_format: str = "text"
    max_seq_length: int = 128
    max_sequences_per_row: int = 0  # 0: by the length
    short_seq_prob: float = 0.1
    dupe_factor: int = 1
    seed: int = 12345
    eval_fraction: float = 0.01
    num_shards: int = 0  # 0: by the size
    lower_case: bool | None = None  # None: by the vocabulary

    def check(self) -> None:
        """Raises UserError for a value that cannot be."""
        rules = [
            ("input_format", self.input_format in readers.FORMATS, f"one of {', '.join(readers.FORMATS)}"),
            (
                "max_seq_length",
                pairs.SHORTEST <= self.max_seq_length < 1 << 16,
                f"at least {pairs.SHORTEST} ([CLS], [SEP] twice, and a token each of A and B), under 65,536",
            ),
            (
                "max_sequences_per_row",
                self.max_sequences_per_row >= 0,
                "at least 1, or 0 to choose by the length",
            ),
            ("short_seq_prob", 0 <= self.short_seq_prob <= 1, "a probability"),
            ("dupe_factor", self.dupe_factor >= 1, "at least 1"),
            ("eval_fraction", 0 <= self.eval_fraction <= 0.5, "0 (hold nothing out) to 0.5"),
            ("num_shards", self.num_shards >= 0, "at least 1, or 0 to choose by the size"),
        ]
        for name, sound, expected in rules:
            if not sound:
                raise UserError(f"--{name}={getattr(self, name)}: expected {expected}")
        if not self.output_dir:
            raise UserError("--output_dir is missing: where should the records go?")


def resolve(
    options: Options,
    tokenizer: tokenization.Tokenizer,
    paths: Sequence[str],
    digests: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What the records are a function of, as the manifest holds it."""
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    file = "vocab.model" if tokenizer.kind == "sentencepiece" else "vocab.txt"
    length = options.max_seq_length
    return {
        "schema": packed.SCHEMA,
        "version": packed.VERSION,
        "max_seq_length": length,
        "max_sequences_per_row": options.max_sequences_per_row or packed.default_sequences_per_row(length),
        "seed": options.seed,
        "short_seq_prob": options.short_seq_prob,
        "dupe_factor": options.dupe_factor,
        "eval_fraction": options.eval_fraction,
        "num_shards": options.num_shards,
        "input_format": options.input_format,
        "vocabulary": tokenizer.settings() | {"file": file},
        "sources": [
            {"name": os.path.relpath(os.path.abspath(path), folder)}
            | {"bytes": digest["bytes"], "sha256": digest["sha256"]}
            for path, digest in zip(paths, digests, strict=True)
        ],
    }


def digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def difference(settings: dict[str, Any], others: dict[str, Any]) -> str:
    """Which of the settings differ, in words, or ''."""
    differences = []
    for name, value in settings.items():
        other = others.get(name)
        if value != other:
            plain = not isinstance(value, dict | list) and not isinstance(other, dict | list)
            differences.append(f"{name} {other!r}, not {value!r}" if plain else f"another {name}")
    return ", ".join(differences)
