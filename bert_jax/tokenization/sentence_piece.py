"""Implements the tokenizer interface for SentencePiece models, as ALBERT uses them."""

from collections.abc import Sequence

import numpy as np
import sentencepiece

from bert_jax.errors import UserError
from bert_jax.tokenization import normalization
from bert_jax.tokenization.interface import Tokenizer, looks_lower_case, parallelism, read_vocabulary_file

WORD_START = "\u2581"

# The first name is used by bert_jax and ALBERT; the others occur in models of other origin.
_PIECE_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer with a SentencePiece .model file.

    Args:
        path: The model, a local path or a URL.
        lower_case: Whether text is lower-cased. None detects it: yes for a vocabulary that, but for a few
            stray tokens, has no upper-case letters.
        strip_accents: Whether accents are removed. None means the same as `lower_case`, as in ALBERT's
            tokenizer.

    Raises:
        UserError: The file is missing, is not a SentencePiece model, or lacks a special token.
    """

    kind = "sentencepiece"

    def __init__(self, path: str, lower_case: bool | None = None, strip_accents: bool | None = None):
        data, digest = read_vocabulary_file(path)
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(data)
            size = self._processor.GetPieceSize()
        except RuntimeError:
            size = 0
        if not size:
            raise UserError(
                f"{path} is not a SentencePiece model; expected what sentencepiece writes as "
                "NAME.model, or a WordPiece vocabulary whose name ends in .txt"
            )
        tokens = [self._processor.IdToPiece(i) for i in range(size)]
        ids = {token: i for i, token in enumerate(tokens)}
        special_ids = {}
        for role, spellings in _PIECE_NAMES.items():
            found = [ids[spelling] for spelling in spellings if spelling in ids]
            if not found:
                raise UserError(
                    f"the SentencePiece model {path} has none of {' '.join(spellings)}; "
                    "`bert-jax vocab --kind=sentencepiece` makes a model with all of BERT's tokens"
                )
            special_ids[role] = found[0]
        if lower_case is None:
            lower_case = looks_lower_case(tokens)
        if strip_accents is None:
            strip_accents = lower_case
        is_text = [not (self._processor.IsControl(i) or self._processor.IsUnknown(i)) for i in range(size)]
        is_continuation = np.array(
            [text and not token.startswith(WORD_START) for text, token in zip(is_text, tokens, strict=True)]
        )
        for i in special_ids.values():
            is_continuation[i] = False
        super().__init__(path, digest, tokens, is_continuation, special_ids, lower_case, strip_accents)

    def _normalize(self, text: str) -> str:
        return normalization.fold(normalization.clean(text), self.lower_case, self.strip_accents)

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        normalized = [self._normalize(text) for text in texts]
        if not normalized:
            return []
        return self._processor.EncodeAsIds(normalized, num_threads=-1 if parallelism() else 1)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for text in texts:
            normalized = self._normalize(text)
            begins, ends = normalization.original_spans(text, self._normalize)
            encoding = self._processor.EncodeAsOffsetMapping(normalized)
            offsets = np.zeros((len(encoding["ids"]), 2), np.int32)
            for i, (begin, end) in enumerate(encoding["offsets"]):
                surface = normalized[begin:end]
                begin += len(surface) - len(surface.lstrip())
                # A piece of only whitespace gets an empty span where the next word begins.
                if surface.strip():
                    offsets[i] = begins[begin], ends[begin + len(surface.strip()) - 1]
                else:
                    offsets[i] = begins[begin] if begin < len(begins) else len(text)
            found.append((np.array(encoding["ids"], np.int32), offsets))
        return found

    def _join(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(WORD_START, " ").strip()
