"""Records what determines the vectors of an index, so that no other model searches in it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from bert_jax.convert import Model
from bert_jax.convert.families.base import START_FIELDS
from bert_jax.inference.embedding import Embedder
from bert_jax.models.config import DROPOUT_FIELDS, HEAD_FIELDS, RUN_FIELDS
from bert_jax.tokenization import Tokenizer

SCHEMA = {
    "weights?": str,
    "tokenizer?": str,
    "pooling?": str,
    "normalize?": bool,
    "max_seq_length?": int,
    "config?": dict,
}
_DIGESTS = {"weights": "other weights", "tokenizer": "another tokenizer"}
# Fields of the encoder's configuration that its states do not depend on once it is trained.
_WITHOUT_EFFECT = {
    *(*RUN_FIELDS, *DROPOUT_FIELDS, *HEAD_FIELDS, *START_FIELDS),
    *("initializer_range", "model_type"),
}


def of(model: Model, embedder: Embedder) -> dict[str, Any]:
    """Returns what determines the vectors that an embedder makes with a model, in the form of `SCHEMA`.

    It is the same for every folder with the model, whichever its format, and on every platform.
    """
    fields = embedder.config.to_dict()
    return {
        "weights": _weights_digest(model),
        "tokenizer": _tokenizer_digest(embedder.tokenizer),
        "pooling": embedder.pooling,
        "normalize": embedder.normalize,
        "max_seq_length": embedder.max_seq_length,
        "config": {name: value for name, value in fields.items() if name not in _WITHOUT_EFFECT},
    }


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns how the fingerprint of a model differs from a recorded one, as parts of a message.

    Args:
        recorded: the settings of an index. What an earlier version did not record is not compared.
        now: the fingerprint of the model.
    """
    then, here = _flat(recorded), _flat(now)
    changed = [name for name, value in here.items() if then.get(name, value) != value]
    return [_DIGESTS.get(name, f"{name} {_shown(then[name])}, not {_shown(here[name])}") for name in changed]


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings, **settings.get("config", {})} | {"config": None}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def _weights_digest(model: Model) -> str:
    """Returns the SHA-256 checksum of the encoder's parameters, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, x in sorted(model.params.items()):
        if name.startswith("encoder/"):
            digest.update(f"{name} {x.dtype} {x.shape}".encode() + x.tobytes())
    return digest.hexdigest()


def _tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Returns the SHA-256 checksum of the tokens and of how text is split, as 64 hexadecimal digits.

    Formats have different files of the same vocabulary, so that it is not that of the file.
    """
    settings = [tokenizer.lower_case, tokenizer.strip_accents, tokenizer.normalizer]
    described = [tokenizer.kind, tokenizer.tokens, settings, dataclasses.asdict(tokenizer.template)]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()
