"""Reads the tokenizers of Hugging Face folders."""

from __future__ import annotations

import base64
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from bert_jax.errors import UserError
from bert_jax.io import files, json_files, scratch
from bert_jax.io.wording import first_line, some
from bert_jax.tokenization import byte_bpe, templates
from bert_jax.tokenization.families import KINDS, RECORDS, TokenizerRecord, find, load_file, of_file
from bert_jax.tokenization.interface import Tokenizer
from bert_jax.tokenization.sentence_piece import COMPOSED, SPLIT_WHITESPACE
from bert_jax.tokenization.wordpiece import MAX_WORD_CHARACTERS

CONFIG = "config.json"
ADDED_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of a token in tokenizer.json

# The classes of transformers whose ids bert_jax reproduces. The class for any tokenizer.json has a name in
# version 4 and another one in version 5.
_OF_TOKENIZER_JSON = ("PreTrainedTokenizer", "TokenizersBackend")
_CLASSES = {*_OF_TOKENIZER_JSON, *(one.class_name for one in RECORDS.values())}
# Classes that tokenize in the same way as another class.
_SAME = {f"{name}Tokenizer": "RobertaTokenizer" for name in ("Bart", "GPT2", "LED", "Longformer")} | {
    f"{name}Tokenizer": "BertTokenizer"
    for name in (
        *("ConvBert", "DPRContextEncoder", "DPRQuestionEncoder", "DPRReader", "LayoutLM", "Lxmert", "MPNet"),
        *("MobileBert", "RetriBert", "SqueezeBert"),
    )
}

# The normalizer of a SentencePiece model by tokenizer class.
_NORMALIZERS = {one.class_name: one.normalizer for one in RECORDS.values() if one.normalizer}

# The only supported values of settings, where the files have them: for any tokenizer, and for WordPiece. With
# other values, a text would have other ids or positions than in bert_jax.
_ANY = {"truncation_side": "right", "padding_side": "right", "remove_space": True, "split_by_punct": False}
_WORD_PIECES = {
    "do_basic_tokenize": True,
    "tokenize_chinese_chars": True,
    "clean_text": True,
    "normalizer": "BertNormalizer",
    "pre_tokenizer": "BertPreTokenizer",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": MAX_WORD_CHARACTERS,
}

_ADDED = "added_tokens.json"
_FAIRSEQ_FIRST = ["<s>", "<pad>", "</s>", "<unk>"]


def read_tokenizer(
    folder: str,
    record: TokenizerRecord | None = None,
    log: Callable[[str], None] = lambda line: None,
    *,
    lower_case: bool | None = None,
    strip_accents: bool | None = None,
    template: templates.Template | None = None,
    normalizer: str = "",
) -> Tokenizer | None:
    """Returns the tokenizer of a folder; None if the folder has no vocabulary.

    The vocabulary is a file of the family's kind, else of another kind, else it is read from tokenizer.json.
    The settings for lower-casing and accents are read from tokenizer_config.json, unless its class only reads
    tokenizer.json, else from tokenizer.json, else they are detected from the vocabulary. Rows follow the
    family's template. With a vocabulary of another kind, or a WordPiece vocabulary of a class that only reads
    tokenizer.json, they follow the template in tokenizer.json, or else the tokenizer's default template.

    Tokens that were added to a WordPiece vocabulary are appended to it as words. A warning lists added tokens
    that are then not recognized in text, or not within words.

    `record` is the tokenizer of the family; None chooses it by config.json. `lower_case`, which also decides
    about accents, `strip_accents`, `template` and `normalizer` replace settings of the folder. A folder whose
    settings would give a text other ids is a UserError.
    """
    try:
        stated = _Stated(folder, record)
        if (path := stated.vocabulary()) is None:
            return None
        stated.check(path)
        normalizer = normalizer or stated.normalizer(path)
        of_folder, accents = stated.case_and_accents(path, normalizer)
        if lower_case is None:
            lower_case = of_folder
            strip_accents = accents if strip_accents is None else strip_accents

        def load(path: str, template: templates.Template | None) -> Tokenizer:
            return load_file(path, lower_case, strip_accents, template, normalizer)

        if template is None and stated.record.has_kind_of(path) and not stated.is_of_tokenizer_json(path):
            template = stated.record.template
        tokenizer = load(path, template)
        special = {role: tokenizer.tokens[i] for role, i in tokenizer.special_ids.items()}
        stated.check_special_tokens(special, tokenizer.special_ids)
        if template is None and (template := stated.template(path, special)):
            tokenizer = load(path, template)
        added = [one for one in stated.added_tokens() if one["content"] not in special.values()]
        if tokenizer.kind == "wordpiece":
            tokenizer = _with_added_tokens(tokenizer, added, lambda path: load(path, tokenizer.template))
        texts = [one["content"] if one.get("single_word") else f"x{one['content']}x" for one in added]
        ids = tokenizer.encode_batch(texts)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder}: its tokenizer is not supported ({first_line(error)})") from error
    if unlike := [one["content"] for one, found in zip(added, ids, strict=True) if one["id"] not in found]:
        log(f"warning: {folder}: its added tokens {some(unlike)} are not recognized in all texts")
    return tokenizer


class _Stated:
    """The settings of a folder's tokenizer. Each method reads one of them and decides between the files.

    The methods raise ValueError for a setting that would give a text other ids or positions than in bert_jax.
    """

    def __init__(self, folder: str, record: TokenizerRecord | None):
        there = files.names(folder)
        # A mapping is empty if the folder does not have the file.
        self.settings, self.rust, self.config = (
            json_files.read(os.path.join(folder, name)) if name in there else {}
            for name in ("tokenizer_config.json", "tokenizer.json", CONFIG)
        )
        self.folder = folder
        self.record = record or RECORDS.get(self.config.get("model_type") or "", RECORDS["bert"])

    @functools.cached_property
    def class_name(self) -> str:
        """Returns the class in transformers, without the suffix "Fast"; "" if no file names it."""
        name = self.settings.get("tokenizer_class") or self.config.get("tokenizer_class") or ""
        name = name.removesuffix("Fast").removesuffix("Legacy")
        name = _SAME.get(name, name)
        if name and name not in _CLASSES:
            raise ValueError(f"tokenizer_class is {name}")
        return name

    def vocabulary(self) -> str | None:
        """Returns the path of the vocabulary, which may be a temporary file; None if there is none."""
        path = find(self.folder, self.record.kind)
        if path is None and not self.rust:
            return None
        class_name = self.class_name or self.record.class_name
        # A tokenizer.json with the vocabulary of another kind is read only if no other file exists.
        of_bpe = not self.rust or (self.rust.get("model") or {}).get("type") == "BPE"
        if path is None or (path.endswith("tokenizer.json") and not of_bpe):
            return _extract_vocabulary(self.rust)
        # All classes except RobertaTokenizer read this setting from tokenizer.json.
        own_space = not self.rust or class_name == "RobertaTokenizer"
        if of_file(path) is KINDS["bpe"] and own_space:
            return _with_prefix_space(path, bool(self.settings.get("add_prefix_space")))
        return path

    def check(self, path: str) -> None:
        """Checks the settings that have only one supported value."""
        given: dict[str, Any] = {x: self.settings.get(x) for x in ("remove_space", "split_by_punct")}
        for name in ("truncation", "padding"):
            side = (
                self.settings.get(f"{name}_side") or (self.rust.get(name) or {}).get("direction") or "right"
            )
            given[f"{name}_side"] = side.lower()
        if of_file(path) is KINDS["wordpiece"]:
            model, normalizer = self.rust.get("model") or {}, self._bert_normalizer()
            given |= {name: self._settings_of(path).get(name) for name in _WORD_PIECES}
            # BertTokenizer has a default for this setting, and does not read it from tokenizer.json.
            if given["tokenize_chinese_chars"] is None and self.class_name in ("", *_OF_TOKENIZER_JSON):
                given["tokenize_chinese_chars"] = normalizer.get("handle_chinese_chars")
            if model.get("type", "WordPiece") == "WordPiece":  # not the tokenizer of another vocabulary
                given["clean_text"] = normalizer.get("clean_text")
                for name in ("continuing_subword_prefix", "max_input_chars_per_word"):
                    given[name] = model.get(name)
                for name in {"normalizer", "pre_tokenizer"} & self.rust.keys():
                    given[name] = _type(self.rust[name])
        expected = _ANY | _WORD_PIECES
        for name, value in given.items():
            if value not in (None, expected[name]):
                raise ValueError(f"{name} is {json.dumps(value)}; expected {json.dumps(expected[name])}")

    def normalizer(self, path: str) -> str:
        """Returns the name of the normalizer for a vocabulary."""
        name = self.record.normalizer_of(path)
        if path.endswith(".model"):
            name = _NORMALIZERS.get(self.class_name, name)
        # AlbertTokenizer has no field strip_accents. If bert_jax wrote this field, the normalizer is BERT's.
        return "" if name == "albert" and "strip_accents" in self.settings else name

    def case_and_accents(self, path: str, normalizer: str) -> tuple[bool | None, bool | None]:
        """Returns whether text is lower-cased and whether accents are removed; None if to be detected."""
        settings = self._settings_of(path)
        if normalizer == "albert":
            steps = {"Lowercase", "StripAccents"}
            if self.rust.get("normalizer"):
                steps = {one.get("type") for one in _steps(self.rust["normalizer"])}
            lower_case, keep = settings.get("do_lower_case"), settings.get("keep_accents")
            return (
                "Lowercase" in steps if lower_case is None else lower_case,
                "StripAccents" in steps if keep is None else not keep,
            )
        stated = self._bert_normalizer()
        strip_accents = settings.get("strip_accents")
        if strip_accents is None:
            strip_accents = stated.get("strip_accents")
        return settings.get("do_lower_case", stated.get("lowercase")), strip_accents

    def template(self, path: str, special: Mapping[str, str]) -> templates.Template | None:
        """Returns the template of rows in tokenizer.json; None if it has no template."""
        if self.rust.get("post_processor"):
            return byte_bpe.template_of(byte_bpe.load_rust(self.rust), special)
        if self.is_of_tokenizer_json(path):
            raise ValueError("tokenizer.json has no post_processor, so transformers adds no special tokens")
        return None

    def added_tokens(self) -> list[dict[str, Any]]:
        """Returns the tokens that were added to a vocabulary, as in tokenizer.json, in the order of ids."""
        found = {token["content"]: token for token in self.rust.get("added_tokens") or ()}
        if _ADDED in files.names(self.folder):
            for token, i in json_files.read(os.path.join(self.folder, _ADDED)).items():
                found[token] = found.get(token, {"content": token}) | {"id": i}
        return sorted(found.values(), key=lambda one: one["id"])

    def is_of_tokenizer_json(self, path: str) -> bool:
        """Returns whether this is a WordPiece vocabulary of a class that only reads tokenizer.json."""
        is_wordpiece = of_file(path) is KINDS["wordpiece"]
        return is_wordpiece and bool(self.rust) and self.class_name in _OF_TOKENIZER_JSON

    def check_special_tokens(self, special: Mapping[str, str], ids: Mapping[str, int]) -> None:
        """Checks that the files have no other tokens at the ends of rows or for masks, and no other ids."""
        stated_ids = {token["content"]: token["id"] for token in self.added_tokens()}
        for role, used in special.items():
            stated = self.settings.get(f"{role}_token")
            stated = stated["content"] if isinstance(stated, Mapping) else stated
            if stated not in (None, used):
                raise ValueError(f"{role}_token is {json.dumps(stated)}; expected {json.dumps(used)}")
            if stated_ids.get(used, ids[role]) != ids[role]:
                raise ValueError(f"the id of {used} is {stated_ids[used]}; expected {ids[role]}")

    def _settings_of(self, path: str) -> Mapping[str, Any]:
        """Returns tokenizer_config.json; empty if the class does not read it for this vocabulary."""
        return {} if self.is_of_tokenizer_json(path) else self.settings

    def _bert_normalizer(self) -> Mapping[str, Any]:
        steps = _steps(self.rust.get("normalizer"))
        return next((one for one in steps if one.get("type") == "BertNormalizer"), {})


def _with_added_tokens(
    tokenizer: Tokenizer, added: Sequence[dict[str, Any]], load: Callable[[str], Tokenizer]
) -> Tokenizer:
    """Returns a WordPiece tokenizer with added tokens, which become words if their ids follow its own ids."""
    size, tokens = tokenizer.vocab_size, tokenizer.tokens
    beyond = {one["content"]: one["id"] for one in added if one["id"] >= size}
    follow = list(beyond.values()) == [*range(size, size + len(beyond))]
    if beyond and follow and not any("\n" in token for token in (*tokens, *beyond)):
        lines = "".join(f"{token}\n" for token in (*tokens, *beyond))
        tokenizer = load(scratch.kept_file("vocab.txt", lines.encode()))
    ids = {token: i for i, token in enumerate(tokenizer.tokens)}
    tokenizer.added_tokens = tuple(one for one in added if ids.get(one["content"]) == one["id"])
    return tokenizer


def _with_prefix_space(path: str, value: bool) -> str:
    """Returns the path of a tokenizer.json with the given value of `byte_bpe.prefix_space`."""
    content = json_files.read(path, {})
    if byte_bpe.prefix_space(content) == value:
        return path
    changed = byte_bpe.serialized(byte_bpe.with_prefix_space(content, value))
    return scratch.kept_file("tokenizer.json", changed)


def _steps(whole: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Returns the steps of a normalizer or a pre-tokenizer of tokenizer.json."""
    whole = whole or {}
    return whole.get("normalizers") or whole.get("pretokenizers") or [whole]


def _type(whole: Mapping[str, Any] | None) -> str:
    steps = _steps(whole)
    return str((steps[0] if len(steps) == 1 else whole or {}).get("type", "none"))


def _extract_vocabulary(rust: Mapping[str, Any]) -> str:
    """Returns the path of a temporary file with the vocabulary of a tokenizer.json."""
    model = rust.get("model") or {}
    if model.get("type") == "Unigram":
        return scratch.kept_file("vocab.model", _sentence_piece_model(rust))
    if model.get("type", "WordPiece") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise ValueError(f"its model is {model.get('type')}; expected WordPiece, BPE or Unigram")
    ids = dict(model["vocab"]) | {token["content"]: token["id"] for token in rust.get("added_tokens") or ()}
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))) or any("\n" in token for token in tokens):
        raise ValueError(f"its ids are not 0 to {len(tokens) - 1}")
    return scratch.kept_file("vocab.txt", "".join(token + "\n" for token in tokens).encode())


def _sentence_piece_model(rust: Mapping[str, Any]) -> bytes:
    """Returns the SentencePiece model from which transformers made a Unigram tokenizer.json."""
    vocabulary = rust["model"]["vocab"]
    unknown = vocabulary[rust["model"]["unk_id"]][0]
    special = {one["content"] for one in rust.get("added_tokens") or () if one.get("special")}
    if [piece for piece, _ in vocabulary[: len(_FAIRSEQ_FIRST)]] == _FAIRSEQ_FIRST:
        others = [(piece, score) for piece, score in vocabulary[len(_FAIRSEQ_FIRST) :] if piece != "<mask>"]
        vocabulary = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *others]
    proto: Any = sentencepiece_model_pb2  # protobuf makes its classes when it is imported
    model, kinds = proto.ModelProto(), proto.ModelProto.SentencePiece
    for piece, score in vocabulary:
        kind = kinds.USER_DEFINED if not score else kinds.NORMAL  # always split off, such as ALBERT's symbols
        if piece in special or piece == unknown:
            kind = kinds.UNKNOWN if piece == unknown else kinds.CONTROL
        model.pieces.add(piece=piece, score=score, type=kind)
    # That tokenizer splits words at any whitespace, which a model without a charsmap does not do.
    model.normalizer_spec.name = SPLIT_WHITESPACE
    for step in _steps(rust.get("normalizer")):
        if step.get("type") == "NFC":
            model.normalizer_spec.name = COMPOSED
        if step.get("type") == "Precompiled":
            model.normalizer_spec.precompiled_charsmap = base64.b64decode(step["precompiled_charsmap"])
    return model.SerializeToString()
