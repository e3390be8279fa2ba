"""The tokenization of google-research/albert, step by step, and random Unicode text for it."""

import random
import unicodedata

_SPECIAL = [
    *("``", "''", "'", "`", '"', "9,", "1,000,", "3,5", "12,", ",", ".", "2,a", "7,,", "\u0663,"),
    *("caf\u00e9", "\u00b2,", "\u00bd,", "\u2163,", "\ufb01", "\u0130", "\u03a3", "\u00df", "\uac00"),
    *("\u4e2d\u6587", "\u304c", " ", "  ", "\t", "\n", "\u00a0", "\u2028", "\u3000", "\x1c", "\x85"),
    *("\u200b", "\u00ad", "\ufeff", "\x00", "the", "quick", "tokenizer", "words", "The", "\u0301"),
    *("\u0345", "\U0001f468\u200d\U0001f469", "\u2581"),
]


def random_text(rng: random.Random) -> str:
    """Returns up to 24 strings, some of which are single characters of any plane but surrogates."""
    parts = []
    for _ in range(rng.randint(0, 24)):
        if rng.random() < 0.6:
            parts.append(rng.choice(_SPECIAL))
        else:
            code = rng.randrange(rng.choice([0x80, 0x250, 0x3000, 0x10000, 0x110000]))
            parts.append(" " if 0xD800 <= code < 0xE000 else chr(code))
    return "".join(parts)


def encode(processor, text, lower_case=True, keep_accents=False):
    """Returns the ids of a text."""
    text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
    if not keep_accents:
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    if lower_case:
        text = text.lower()
    pieces = []
    for piece in processor.encode(text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            inner = processor.encode(piece[:-1].replace("\u2581", ""), out_type=str)
            if piece[0] != "\u2581" and inner[0][0] == "\u2581":
                inner = inner[1:] if inner[0] == "\u2581" else [inner[0][1:], *inner[1:]]
            pieces += [*inner, ","]
        else:
            pieces.append(piece)
    return [processor.piece_to_id(piece) for piece in pieces]
