"""Implements the tokenizer interface for SentencePiece models, which ALBERT, XLM-R and DeBERTa use."""

import functools
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.tokenization import normalization, templates
from bert_jax.tokenization.interface import Tokenizer, find_special_tokens, parallelism

WORD_START = "\u2581"

# The first name is used by bert_jax and ALBERT; the others occur in models of other origin.
_PIECE_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}

# The pieces that SentencePiece puts first by default, and the ids of fairseq for them.
_FAIRSEQ_PIECES = ["<unk>", "<s>", "</s>"]
_FAIRSEQ_TOKENS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>"}

# Values of a model's normalizer name. With the first, every Unicode whitespace character is a space. With the
# second, text is normalized as in transformers 5, whose DebertaV2Tokenizer ignores the model's charsmap.
SPLIT_WHITESPACE = "bert_jax: any whitespace is a space"
COMPOSED = "bert_jax: composed characters"
_WHITESPACE = re.compile("[\t-\r\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")

_COLLAPSED = re.compile(r"\s+|``|''|.", re.DOTALL)


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer with a SentencePiece .model file.

    If a model has all special tokens, as in ALBERT, token ids are its piece ids. If it begins with <unk>, <s>
    and </s> and has no padding, token ids are as in fairseq and XLM-R (Conneau et al. 2020): <s>, <pad>, </s>
    and <unk> are 0 to 3, every other piece has its piece id plus 1, and <mask> has the last id. Text is then
    normalized only by the model itself, and rows have RoBERTa's template.

    The normalizer "albert" gives the same ids as google-research/albert; see `albert_normalizer`. With the
    normalizer "deberta", only the model itself normalizes text, as in DeBERTa (He et al. 2021). A model with
    [PAD], [UNK], [CLS] and [SEP] and without a mask is treated in this way, and the last id is then [MASK].
    """

    kind = "sentencepiece"
    word_start = WORD_START
    normalizers = ("bert", "albert", "deberta")
    _rust: Any = None

    @functools.cached_property
    def _normalize(self) -> Callable[[str], str]:
        if self.is_fairseq and self._splits_whitespace:
            return lambda text: _WHITESPACE.sub(" ", normalization.without_surrogates(text))
        if self.is_fairseq or self.normalizer == "deberta":
            return normalization.without_surrogates
        if self.is_albert:
            return albert_normalizer(self.lower_case, self.strip_accents)
        return lambda text: normalization.fold(normalization.clean(text), self.lower_case, self.strip_accents)

    @functools.cached_property
    def _divisible(self) -> frozenset[int]:
        """The ids of pieces whose text may end in a digit and a comma, including the unknown piece."""
        unknown = self.special_ids["unk"]
        return frozenset(
            i for i, token in enumerate(self.tokens) if i == unknown or ends_in_digit_comma(token)
        )

    def _parse(self, data: bytes) -> None:
        self._processor = processor = sentencepiece.SentencePieceProcessor()
        processor.LoadFromSerializedProto(data)
        self.tokens = [processor.IdToPiece(i) for i in range(processor.GetPieceSize())]
        ids = {token: i for i, token in enumerate(self.tokens)}
        self.is_albert = self.normalizer == "albert"
        # Other models normalize whitespace themselves.
        self._splits_whitespace = SPLIT_WHITESPACE.encode() in data
        self.is_fairseq = self.tokens[:3] == _FAIRSEQ_PIECES and not {"<pad>", "<mask>"} & ids.keys()
        if self.is_fairseq:
            self._parse_fairseq()
            return
        self.is_continuation = np.array(
            [
                not (token.startswith(WORD_START) or processor.IsControl(i) or processor.IsUnknown(i))
                for i, token in enumerate(self.tokens)
            ]
        )
        has_mask = any(token in ids for token in _PIECE_NAMES["mask"])
        if not has_mask and all(names[0] in ids for role, names in _PIECE_NAMES.items() if role != "mask"):
            self.normalizer, mask = "deberta", _PIECE_NAMES["mask"][0]
            ids[mask] = len(self.tokens)
            self.tokens.append(mask)
            self.is_continuation = np.append(self.is_continuation, False)
        if self.normalizer == "deberta":
            self.keeps_case = True
            self.released_name, self.mask_strips = "spm.model", (False, False)
            self._rust = rust_unigram(data, False) if COMPOSED.encode() in data else None
        found = find_special_tokens(ids, _PIECE_NAMES)
        self.special_ids = {role: ids[token] for role, token in found.items()}
        self.is_continuation[list(self.special_ids.values())] = False

    def _parse_fairseq(self) -> None:
        specials = [*_FAIRSEQ_TOKENS.values()]
        self.tokens = [*specials, *self.tokens[len(_FAIRSEQ_PIECES) :], "<mask>"]
        self.keeps_case = True
        self.special_tokens = _FAIRSEQ_TOKENS | {"mask": "<mask>"}
        self.special_ids = {role: self.tokens.index(token) for role, token in _FAIRSEQ_TOKENS.items()}
        self.special_ids["mask"] = len(self.tokens) - 1
        self.default_template, self.released_name = templates.ROBERTA, "sentencepiece.bpe.model"
        self.is_continuation = np.array([not token.startswith(WORD_START) for token in self.tokens])
        self.is_continuation[list(self.special_ids.values())] = False

    def _ids(self, pieces: Sequence[int]) -> list[int]:
        if not self.is_fairseq:
            return list(pieces)
        return [piece + 1 if piece else self.special_ids["unk"] for piece in pieces]

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        if self._rust:
            return super()._encode_plain(texts)
        normalized = [self._normalize(text) for text in texts]
        if not normalized:
            return []
        encoded = self._processor.EncodeAsIds(normalized, num_threads=-1 if parallelism() else 1)
        if self.is_albert:
            return [
                ids
                if self._divisible.isdisjoint(ids)
                else [self._processor.PieceToId(part) for parts in self._parts(text) for part in parts]
                for text, ids in zip(normalized, encoded, strict=True)
            ]
        return [self._ids(pieces) for pieces in encoded] if self.is_fairseq else encoded

    def _parts(self, normalized: str) -> list[list[str]]:
        """Returns the pieces of a normalized text, each as its parts: `9,` is split into `9` and a comma."""
        found = []
        for piece in self._processor.EncodeAsPieces(normalized):
            parts = [piece]
            if ends_in_digit_comma(piece):
                parts = self._processor.EncodeAsPieces(piece[:-1].replace(WORD_START, ""))
                if parts and piece[0] != WORD_START and parts[0][0] == WORD_START:
                    parts = [*filter(None, [parts[0][1:]]), *parts[1:]]
                parts.append(",")
            found.append(parts)
        return found

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids and the spans of the tokens of each text; see `Tokenizer`."""
        if self._rust:
            return [
                (ids, _without_space(text, spans))
                for text, (ids, spans) in zip(texts, super().encode_with_offsets(texts), strict=True)
            ]
        found = []
        for text in texts:
            normalized = self._normalize(text)
            if self.is_albert:
                begins, ends = _albert_spans(text, self.lower_case, self.strip_accents)
            else:
                begins, ends = normalization.original_spans(text, self._normalize)
            encoding = self._processor.EncodeAsOffsetMapping(normalized)
            ids, places = encoding["ids"], encoding["offsets"]
            if self.is_albert and not self._divisible.isdisjoint(ids):
                ids, places = self._divided(normalized, ids, places)
            offsets = np.zeros((len(ids), 2), np.int32)
            for i, (begin, end) in enumerate(places):
                surface = normalized[begin:end]
                begin += len(surface) - len(surface.lstrip())
                # A piece of only whitespace gets an empty span where the next word begins.
                if surface.strip():
                    offsets[i] = begins[begin], ends[begin + len(surface.strip()) - 1]
                else:
                    offsets[i] = begins[begin] if begin < len(begins) else len(text)
            found.append((np.array(self._ids(ids), np.int32), offsets))
        return found

    def _divided(
        self, normalized: str, ids: Sequence[int], places: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns ids and spans in the normalized text after ALBERT's further splitting of pieces."""
        found: list[tuple[int, tuple[int, int]]] = []
        for parts, number, (begin, end) in zip(self._parts(normalized), ids, places, strict=True):
            if len(parts) == 1:
                found.append((number, (begin, end)))
                continue
            at = begin + len(normalized[begin:end]) - len(normalized[begin:end].lstrip())
            for part in parts[:-1]:
                until = min(at + len(part.replace(WORD_START, "")), end - 1)
                found.append((self._processor.PieceToId(part), (at, until)))
                at = until
            found.append((self._processor.PieceToId(parts[-1]), (at, end)))
        return [number for number, _ in found], [place for _, place in found]

    def _join(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(WORD_START, " ").strip()


def _without_space(text: str, spans: np.ndarray) -> np.ndarray:
    """Returns spans without surrounding whitespace. The span of a whitespace token becomes empty."""
    begins = [end - len(text[begin:end].lstrip()) for begin, end in spans]
    lengths = [len(text[begin:end].strip()) for begin, end in spans]
    return np.array([begins, np.add(begins, lengths)], np.int32).T.reshape(-1, 2)


def rust_unigram(data: bytes, has_special: bool = True) -> tokenizers.Tokenizer:
    """Returns the tokenizer of the library `tokenizers` with the ids of a DeBERTa's SentencePiece model.

    It does not add special tokens. With `has_special`, it finds those that are spelled out in a text.
    """
    proto: Any = sentencepiece_model_pb2  # protobuf makes its classes when it is imported
    model, kinds = proto.ModelProto.FromString(data), proto.ModelProto.SentencePiece
    # Words contain no spaces, so a piece whose name has one is never found.
    special = () if has_special else (kinds.CONTROL, kinds.UNKNOWN)
    scores = [(f" {one.piece}" if one.type in special else one.piece, one.score) for one in model.pieces]
    unknown = next(i for i, one in enumerate(model.pieces) if one.type == kinds.UNKNOWN)
    rust = tokenizers.Tokenizer(models.Unigram(scores, unknown, byte_fallback=False))
    steps: list[Any]
    if model.normalizer_spec.name == COMPOSED:
        whitespace = tokenizers.Regex(r"\s{2,}|[\n\r\t]")
        steps = [normalizers.Replace(whitespace, " "), normalizers.NFC(), normalizers.Strip(left=False)]
    else:
        characters = model.normalizer_spec.precompiled_charsmap
        patterns = {r"\A +| +\z": "", " {2,}": " ", rf"\A{WORD_START}": WORD_START * 2}
        steps = [
            *([normalizers.Precompiled(characters)] if characters else []),
            *(normalizers.Replace(tokenizers.Regex(x), content) for x, content in patterns.items()),
        ]
    rust.normalizer = normalizers.Sequence(steps)
    space: dict[str, Any] = {"replacement": WORD_START, "prepend_scheme": "always"}
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(**space), decoders.Metaspace(**space)
    return rust


def albert_normalizer(lower_case: bool, strip_accents: bool) -> Callable[[str], str]:
    """Returns a function that normalizes raw text as google-research/albert does.

    The slow tokenizer of transformers does the same. Its Rust tokenizer lacks the rule for "digit, comma".

    Whitespace becomes single spaces, and pairs of backquotes and of apostrophes become quotation marks. On
    request, accents are stripped by compatibility decomposition and removal of all combining characters, and
    letters are lower-cased.
    """
    fold = _folding(lower_case, strip_accents)
    return lambda text: fold(_plain(text))


def _albert_spans(text: str, lower_case: bool, strip_accents: bool) -> tuple[np.ndarray, np.ndarray]:
    plain = _plain(text)
    begins, ends = normalization.original_spans(plain, _folding(lower_case, strip_accents))
    if plain == text:
        return begins, ends
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    places = [match.span() for match in _COLLAPSED.finditer(text, start, end)]
    edges = np.array(places, np.int32).reshape(-1, 2)
    return edges[begins, 0], edges[ends - 1, 1]


def ends_in_digit_comma(piece: str) -> bool:
    """Returns whether a piece ends in a digit and a comma."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _plain(text: str) -> str:
    text = " ".join(normalization.without_surrogates(text).split())
    return text.replace("``", '"').replace("''", '"')


def _folding(lower_case: bool, strip_accents: bool) -> Callable[[str], str]:
    def fold(text: str) -> str:
        if strip_accents and not text.isascii():
            decomposed = normalization.normalize("NFKD", text)
            text = "".join(character for character in decomposed if not unicodedata.combining(character))
        return text.lower() if lower_case else text

    return fold
