"""Settings of sentence-transformers: how a model makes a vector of a text, or a score of a pair of texts."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import atomic, files, json_files
from bert_jax.models.heads.structures import LEAST_LENGTH
from bert_jax.tokenization import Tokenizer

MODULES, SETTINGS, POOLING = "modules.json", "sentence_bert_config.json", "1_Pooling"
PROMPTS = "config_sentence_transformers.json"
# The names of poolings in sentence-transformers.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_TYPES = "sentence_transformers.models"
_MODULES = [{"path": str, "type": str}]
# Old versions of sentence-transformers named the file of the settings after the family.
_FAMILIES = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_SETTINGS_FILES = (SETTINGS, *(f"sentence_{family}_config.json" for family in _FAMILIES))
_SETTINGS = {"max_seq_length?": (int, None), "do_lower_case?": (bool, None)}
# transformers writes 10**30, rounded, for a tokenizer without a limit.
_TOKENIZER = {"model_max_length?": (range(-(10**31), 10**31), float, None)}
_ACTIVATION = {"activation_fn?": (str, None)}
_BEFORE_6, _BEFORE_4 = "sentence_transformers", "sbert_ce_default_activation_function"
_PROMPTS = {
    "prompts?": ({str: (str, None)}, None),
    "default_prompt_name?": (str, None),
    "similarity_fn_name?": (str, None),
    "truncate_dim?": (int, None),
}


@dataclasses.dataclass(frozen=True)
class SentenceVectors:
    """How a model turns a text into one vector."""

    pooling: str = "mean"  # of the last hidden states: "cls", "mean", "max" or "last"
    normalize: bool = False  # to length 1
    max_seq_length: int = 0  # tokens at which texts are cut; 0: the number of the model's positions
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # {"query": put before a text}
    unsupported: str = ""  # what else the folder has that changes its vectors
    similarity: str = ""  # of sentence-transformers: "dot", ...; nothing here depends on it

    def stored(self) -> dict[str, Any]:
        """Returns the fields for the config.json of a run; without `similarity` if it is the default."""
        fields = dataclasses.asdict(self)
        return fields if self.similarity else {name: x for name, x in fields.items() if name != "similarity"}

    def prompt(self, name: str) -> str:
        """Returns the text of a prompt; "" for the name "". Raises UserError for an unknown one."""
        if name and name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise UserError(f"prompt {name!r} is unknown; the prompts of the model are {known}")
        return self.prompts.get(name, "")

    @property
    def query_prompt(self) -> str:
        """The text to put before a query."""
        return self.prompts.get("query", "")

    @property
    def document_prompt(self) -> str:
        """The text to put before a document."""
        return self.prompts.get("document", self.prompts.get("passage", ""))


@dataclasses.dataclass(frozen=True)
class PairScores:
    """How sentence-transformers' CrossEncoder scores pairs of texts with a sequence classifier."""

    # PyTorch's class that is applied to the outputs, such as "torch.nn.modules.linear.Identity"; "" for the
    # sigmoid of a single output, and otherwise nothing.
    activation: str = ""
    max_seq_length: int = 0  # tokens at which pairs are cut; 0: the number of the model's positions


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors [..., H] scaled to length 1, as `normalize` asks for; a vector of zeros stays."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), LEAST_LENGTH)


def encoder_folder(folder: str) -> str:
    """Returns the directory of the encoder: the folder, or `0_Transformer` in folders of old versions."""
    path = os.path.join(folder, MODULES)
    modules = json_files.read(path, _MODULES) if MODULES in files.names(folder) else []
    name = next((one["path"] for one in modules if _kind(one) == "Transformer"), "")
    return os.path.join(folder, name) if name not in ("", ".") else folder


def read(folder: str, positions: int, tokenizer: Tokenizer | None = None) -> SentenceVectors | None:
    """Returns the settings of a folder of sentence-transformers, for a model with `positions` tokens.

    For other folders it is None, unless the tokenizer cuts texts before the last position.
    """
    length = read_length(folder, positions)
    if MODULES not in files.names(folder):
        return SentenceVectors(max_seq_length=length) if 0 < length < positions else None
    pooling, normalize, has_prompt, width = SentenceVectors.pooling, False, True, None
    unsupported: list[str] = []
    for module in json_files.read(os.path.join(folder, MODULES), _MODULES):
        kind = _kind(module)
        if kind == "Pooling":
            fields = json_files.read(os.path.join(folder, module["path"], "config.json"), dict)
            known, has_prompt = _pooling(fields), fields.get("include_prompt") is not False
            width = fields.get("word_embedding_dimension", fields.get("embedding_dimension"))
            pooling = known or pooling
            unsupported += [] if known else ["its pooling"]
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            unsupported.append(f"the module {kind}")
    encoder = encoder_folder(folder)
    settings = _read_first(encoder, _SETTINGS_FILES, _SETTINGS)
    prompts = _read_first(folder, (PROMPTS,), _PROMPTS)
    texts = {name: text for name, text in (prompts.get("prompts") or {}).items() if text}
    if prompts.get("default_prompt_name") in texts:
        unsupported.append("its default prompt")
    if texts and not has_prompt:
        unsupported.append("its pooling without the prompt")
    if (cut := prompts.get("truncate_dim")) and cut != width:
        unsupported.append(f"its cut to {cut} dimensions")
    if settings.get("do_lower_case") and tokenizer and not tokenizer.lower_case:
        unsupported.append("its lower-casing")
    similarity = prompts.get("similarity_fn_name") or ""
    return SentenceVectors(pooling, normalize, length, texts, " and ".join(unsupported), similarity)


def read_length(folder: str, positions: int) -> int:
    """Returns the number of tokens at which texts are cut, at most `positions`; 0 if the folder has none.

    It is `max_seq_length` of the settings, else `model_max_length` of the tokenizer, as in version 6.
    """
    encoder = encoder_folder(folder)
    length = _read_first(encoder, _SETTINGS_FILES, _SETTINGS).get("max_seq_length")
    length = length or _read_first(encoder, ("tokenizer_config.json",), _TOKENIZER).get("model_max_length")
    return int(max(0, min(positions, length or 0)))


def read_scores(folder: str, fields: Mapping[str, Any], positions: int) -> PairScores:
    """Returns the score settings of the classifier in a Hugging Face folder with these `fields`."""
    named = _read_first(folder, (PROMPTS,), _ACTIVATION)
    config = os.path.join(encoder_folder(folder), "config.json")
    schema = {f"{_BEFORE_6}?": ({"activation_fn?": (str, None)}, None), f"{_BEFORE_4}?": (str, None)}
    json_files.check(
        {name: fields[name] for name in (_BEFORE_6, _BEFORE_4) if name in fields}, schema, config
    )
    older = (fields.get(_BEFORE_6) or {}).get("activation_fn") or fields.get(_BEFORE_4)
    length = read_length(folder, positions)
    return PairScores(named.get("activation_fn") or older or "", length if length < positions else 0)


def _kind(module: Mapping[str, str]) -> str:
    return module["type"].split(".")[-1]


def _read_first(folder: str, names: Sequence[str], schema: Any) -> dict[str, Any]:
    there = files.names(folder)
    return next((json_files.read(os.path.join(folder, name), schema) for name in names if name in there), {})


def _pooling(fields: Mapping[str, Any]) -> str:
    if isinstance(given := fields.get("pooling_mode"), str):
        name = "last" if given == "lasttoken" else given
        return name if name in _FLAGS.values() else ""
    chosen = [name for name, value in fields.items() if name.startswith("pooling_mode_") and value is True]
    return _FLAGS.get(chosen[0], "") if len(chosen) == 1 else ""


def write(sentence: SentenceVectors, width: int, positions: int, folder: str) -> None:
    """Writes the files of sentence-transformers for vectors of `width` numbers into an existing directory."""
    os.makedirs(os.path.join(folder, POOLING), exist_ok=True)
    names = [("", "Transformer"), (POOLING, "Pooling")]
    if sentence.normalize:
        names.append(("2_Normalize", "Normalize"))
        os.makedirs(os.path.join(folder, "2_Normalize"), exist_ok=True)
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_TYPES}.{kind}"}
        for i, (path, kind) in enumerate(names)
    ]
    write_json(folder, MODULES, modules)
    flag = next(flag for flag, name in _FLAGS.items() if name == sentence.pooling)
    fields = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": False} | {flag: True}
    write_json(os.path.join(folder, POOLING), "config.json", fields)
    write_json(folder, SETTINGS, {"max_seq_length": sentence.max_seq_length or positions})
    content = {"prompts": dict(sentence.prompts), "default_prompt_name": None} if sentence.prompts else {}
    if content := content | ({"similarity_fn_name": sentence.similarity} if sentence.similarity else {}):
        write_json(folder, PROMPTS, content)


def write_json(folder: str, name: str, content: Any) -> None:
    """Writes a file of JSON in UTF-8, indented."""
    atomic.write_text(os.path.join(folder, name), json.dumps(content, indent=2, ensure_ascii=False) + "\n")
