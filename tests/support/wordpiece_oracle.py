"""google-research/bert's full tokenizer in plain Python, from its algorithm: slow, and beyond doubt."""

import unicodedata

CHINESE = [
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
]


def is_dropped(char):
    return char in "\0\ufffd" or (char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf"))


def is_punctuation(char):
    # Every printable ASCII character that is no letter, digit or space, also those that Unicode calls
    # symbols.
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    return unicodedata.category(char).startswith("P")


def clean(text):
    kept = (char for char in text if not is_dropped(char))
    return "".join(" " if char in "\t\n\r" or unicodedata.category(char) == "Zs" else char for char in kept)


def set_chinese_apart(text):
    return "".join(
        f" {char} " if any(first <= ord(char) <= last for first, last in CHINESE) else char for char in text
    )


def split_punctuation(word):
    parts, start_new = [], True
    for char in word:
        if is_punctuation(char):
            parts.append(char)
            start_new = True
        elif start_new:
            parts.append(char)
            start_new = False
        else:
            parts[-1] += char
    return parts


def basic_tokenize(text, lower_case, strip_accents):
    words = []
    for word in set_chinese_apart(clean(text)).split():
        if lower_case:
            word = word.lower()
        if strip_accents:
            word = "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")
        words += split_punctuation(word)
    return " ".join(words).split()


def wordpiece(word, vocabulary, longest=200):
    if len(word) > longest:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        for end in range(len(word), start, -1):
            if prefix + word[start:end] in vocabulary:
                pieces.append(prefix + word[start:end])
                start = end
                break
        else:
            return ["[UNK]"]
    return pieces


def tokenize(text, vocabulary, lower_case=True, strip_accents=True):
    """Tokens of a text; `vocabulary` is anything with `in`."""
    words = basic_tokenize(text, lower_case, strip_accents)
    return [piece for word in words for piece in wordpiece(word, vocabulary)]
