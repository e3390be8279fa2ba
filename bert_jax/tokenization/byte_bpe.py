"""Implements byte-level BPE as RoBERTa and ModernBERT use it, on the Rust library `tokenizers`.

A text is split into words by GPT-2's pattern, where a word includes the space before it; the UTF-8 bytes of a
word are joined by merges (Radford et al. 2019, section 2.2; Liu et al. 2019, section 4.4). Since every byte
has a token, no text is unknown, and decoding restores it exactly.

A run stores a tokenizer.json, the file format of `tokenizers` and transformers. RoBERTa was released with
vocab.json, which maps tokens to ids, and merges.txt, which lists the merges in the order of their rank.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, pre_tokenizers, processors

from bert_jax.io import files, json_files, scratch
from bert_jax.tokenization import templates
from bert_jax.tokenization.interface import Tokenizer, find_special_tokens

WORD_START = "\u0120"  # stands for a space
ALPHABET = frozenset(pre_tokenizers.ByteLevel.alphabet())  # the characters that stand for the 256 bytes
VOCABULARY, MERGES = "vocab.json", "merges.txt"

# The spellings of special tokens in RoBERTa, and in BERT and ModernBERT, in the order of the ids in a new
# vocabulary. RoBERTa's first four have these ids in fairseq.
ROBERTA_TOKENS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
BERT_TOKENS = {"cls": "[CLS]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
_SPELLINGS = {role: (token, BERT_TOKENS[role]) for role, token in ROBERTA_TOKENS.items()}

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


class ByteBpeTokenizer(Tokenizer):
    """A tokenizer with a tokenizer.json of byte-level BPE.

    The tokens are the same as in transformers, except for special tokens that are spelled out in a text; see
    `encode_batch`. Whitespace is part of the tokens, so a blank text has tokens, and a word has different
    tokens after a space and at the beginning of a text. A lone surrogate, which does not occur in UTF-8
    text, is encoded as U+FFFD. A byte without a token in the vocabulary becomes the unknown token.

    The offsets do not include spaces: a token that is only a space has an empty span where the next one
    begins. The tokens of a character that is split into several all have the span of that character.
    """

    kind = "bpe"
    states_template = True
    word_start = WORD_START
    keeps_case = True

    def _parse(self, data: bytes) -> None:
        content = json.loads(data)
        kind = content["model"].get("type")
        if kind != "BPE" or not byte_levels(content):
            raise ValueError(f"its type is {kind}; expected byte-level BPE, or the folder of the file")
        added = {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
        ids: dict[str, int] = content["model"]["vocab"] | added
        self.tokens = sorted(ids, key=ids.__getitem__)
        if [ids[token] for token in self.tokens] != list(range(len(ids))):
            raise ValueError(f"its ids are not 0 to {len(ids) - 1}")
        self.special_tokens = find_special_tokens(ids, _SPELLINGS)
        self.special_ids = {role: ids[token] for role, token in self.special_tokens.items()}
        self._content = content | {"added_tokens": _added_tokens(content, self._special)}
        (mask,) = (x for x in self._content["added_tokens"] if x["content"] == self.special_tokens["mask"])
        self.mask_strips = bool(mask.get("lstrip")), bool(mask.get("rstrip"))
        self._rust = load_rust(self._content)
        found = template_of(self._rust, self.special_tokens)
        self.default_template = found or _usual_template(self.special_tokens)
        self._rust.encode_special_tokens = True  # none is recognized in a text
        self._rust.post_processor = processors.ByteLevel(add_prefix_space=self.prefix_space)
        if not content["model"].get("unk_token") and not content["model"]["vocab"].keys() >= ALPHABET:
            model: Any = self._rust.model
            model.unk_token = self.special_tokens["unk"]
        starts = {*added, *self.special_tokens.values()}
        # Added tokens are spelled as text, the other tokens as the characters that stand for their bytes.
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._as_bytes = {token: bytes_of.pre_tokenize_str(token)[0][0] for token in starts}
        self.is_continuation = np.array(
            [token not in starts and not token.startswith(WORD_START) for token in self.tokens]
        )

    @property
    def _special(self) -> dict[str, tuple[str, int]]:
        return {role: (token, self.special_ids[role]) for role, token in self.special_tokens.items()}

    @property
    def content(self) -> Mapping[str, Any]:
        """The content of tokenizer.json, with the template of this tokenizer."""
        processor = _post_processor(self._special, self.template, self.prefix_space)
        return self._content | {"post_processor": processor}

    @property
    def prefix_space(self) -> bool:
        """Whether a text without a leading space gets one: add_prefix_space in transformers."""
        return prefix_space(self._content)

    @property
    def is_plain(self) -> bool:
        """Whether vocab.json, merges.txt and `prefix_space` describe the tokenizer completely.

        In this case the text is not normalized, and is split as for GPT-2.
        """
        given = _BYTE_LEVEL | self._content["pre_tokenizer"] | {"add_prefix_space": False}
        return given == _BYTE_LEVEL and not self._content.get("normalizer")

    def after_space(self, text: str) -> str:
        """Returns a text with a space before it, unless it begins with whitespace; see `Tokenizer`."""
        return text if text[:1] in self.whitespace else f" {text}"

    def spelling(self, token_id: int) -> str:
        """Returns the text of a token, which includes the space before a word."""
        return self._join([self.tokens[token_id]])

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids and the spans of the tokens of each text; see `Tokenizer`."""
        found = super().encode_with_offsets(texts)
        if self.prefix_space:  # The library mistakes a leading space of the text for an added one.
            for text, (_, offsets) in zip(texts, found, strict=True):
                if text.startswith(" "):
                    offsets[:1] = np.maximum(offsets[:1], 1)
        return found

    def _join(self, tokens: Sequence[str]) -> str:
        return decoders.ByteLevel().decode([self._as_bytes.get(token, token) for token in tokens])


def tokenizer_json(
    ids: Mapping[str, int],
    merges: Sequence[str],
    special_tokens: Mapping[str, str],
    template: templates.Template,
) -> dict[str, Any]:
    """Returns the content of a tokenizer.json that keeps all text.

    `ids` has all tokens, including special ones, and `merges` pairs of tokens separated by a space, in the
    order of their rank.
    """
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": _BYTE_LEVEL,
        "post_processor": None,
        "decoder": _BYTE_LEVEL | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": dict(sorted(ids.items(), key=lambda item: item[1])),
            "merges": list(merges),
        },
    }
    special = {role: (token, ids[token]) for role, token in special_tokens.items()}
    return content | {
        "added_tokens": _added_tokens(content, special),
        "post_processor": _post_processor(special, template, prefix=False),
    }


def _added_tokens(content: Mapping[str, Any], special: Mapping[str, tuple[str, int]]) -> list[dict[str, Any]]:
    """Returns the added tokens of a tokenizer.json, including the special ones.

    A special token that the file lists keeps its flags. Otherwise the mask token includes the spaces before
    it, as in the released RoBERTa and ModernBERT.
    """
    added = {token["content"]: token for token in content.get("added_tokens") or ()}
    flags: dict[str, Any] = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    for role, (token, number) in special.items():
        flags |= {"id": number, "content": token}
        added[token] = {"lstrip": role == "mask"} | flags | added.get(token, {}) | {"special": True}
    return sorted(added.values(), key=lambda token: token["id"])


def byte_levels(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the steps of the pre-tokenizer of a tokenizer.json that are of the type ByteLevel."""
    whole = content.get("pre_tokenizer") or {}
    steps = (whole, *(whole.get("pretokenizers") or ()))
    return [step for step in steps if step.get("type") == "ByteLevel"]


def prefix_space(content: Mapping[str, Any]) -> bool:
    """Returns whether a tokenizer.json adds a space to a text that does not begin with one."""
    return any(step.get("add_prefix_space") for step in byte_levels(content))


def with_prefix_space(content: Mapping[str, Any], value: bool) -> dict[str, Any]:
    """Returns a tokenizer.json with the given value of `prefix_space`."""
    changed = copy.deepcopy(dict(content))
    for step in byte_levels(changed):
        step["add_prefix_space"] = value
    return changed


def _post_processor(
    special: Mapping[str, tuple[str, int]], template: templates.Template, prefix: bool
) -> dict[str, Any]:
    made: Any
    if template == templates.ROBERTA:
        made = processors.RobertaProcessing(special["sep"], special["cls"], add_prefix_space=prefix)
    else:
        trimmed = processors.ByteLevel(add_prefix_space=prefix, use_regex=False)  # only trims the offsets
        made = processors.Sequence([trimmed, template_processing(template, special)])
    return json.loads(made.__getstate__())


def template_processing(
    template: templates.Template, special: Mapping[str, tuple[str, int]]
) -> processors.TemplateProcessing:
    """Returns the post-processor that assembles rows; `special` has (spelling, id) by role."""

    def spelled(which: str) -> str:
        places = template.places(which)
        return " ".join(f"{special[x][0] if x in special else f'${x}'}:{number}" for x, number in places)

    used = dict((*template.places("single"), *template.places("pair"))).keys() & special.keys()
    return processors.TemplateProcessing(
        single=spelled("single"), pair=spelled("pair"), special_tokens=[special[role] for role in used]
    )


def load_rust(content: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of a tokenizer.json."""
    try:
        rust = tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library defines no class
        raise ValueError(str(error)) from None
    rust.no_padding()
    rust.no_truncation()
    return rust


def template_of(rust: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> templates.Template | None:
    """Returns how a tokenizer assembles rows; None if it adds no special tokens.

    `special_tokens` are their spellings by role. Raises KeyError or ValueError for other rows.
    """
    roles = {token: role for role, token in special_tokens.items()}

    def row(second: str | None) -> str:
        encoding = rust.encode("a", second)
        places: list[str] = []
        for token, text, number in zip(
            encoding.tokens, encoding.sequence_ids, encoding.type_ids, strict=True
        ):
            place = f"{roles[token] if text is None else 'AB'[text]}:{number}"
            if text is None or place not in places:  # a text may have several tokens
                places.append(place)
        return " ".join(places)

    single = row(None)
    return templates.Template(single, row("a")) if " " in single else None


def _usual_template(special_tokens: Mapping[str, str]) -> templates.Template:
    return templates.ROBERTA if special_tokens["cls"] == ROBERTA_TOKENS["cls"] else templates.BERT


def serialized(content: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a tokenizer.json."""
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()


def joined(folder: str | os.PathLike) -> str | None:
    """Returns the path of a temporary tokenizer.json with a folder's vocab.json and merges.txt, or None."""
    paths = [os.path.join(folder, name) for name in (VOCABULARY, MERGES)]
    if not all(files.exists(path) for path in paths):
        return None
    ids = json_files.read(paths[0], {str: range(1 << 31)})
    lines = files.read(paths[1]).decode().split("\n")
    if lines[0].startswith("#version"):
        del lines[0]
    merges = [merge for line in lines if (merge := line.removesuffix("\r"))]
    found = find_special_tokens(ids, _SPELLINGS)
    content = tokenizer_json(ids, merges, found, _usual_template(found))
    return scratch.kept_file("tokenizer.json", serialized(content))


def separate(content: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the content of vocab.json and merges.txt, by name, for the content of a tokenizer.json."""
    model = content["model"]
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    return {
        VOCABULARY: (json.dumps(model["vocab"], ensure_ascii=False) + "\n").encode(),
        MERGES: "".join(line + "\n" for line in ("#version: 0.2", *merges)).encode(),
    }
