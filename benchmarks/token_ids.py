"""Token ids here against transformers' BertTokenizer on whole corpora; prints the words that differ.

    python benchmarks/token_ids.py --vocab=bert-base-uncased-vocab.txt --input='wiki/*' --tokenizer=python

`rust` is the tokenizer that transformers gives for a BERT, `python` the one in plain Python that it had
before and still carries. Both are needed: the Rust one differs from google-research/bert in other words.
"""

from __future__ import annotations

import argparse
import collections
import glob
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from bert_jax import tokenization
from bert_jax.tokenization import normalization
from bert_jax.tokenization.interface import SPECIAL_TOKENS

Encode = Callable[[Sequence[str]], list[list[int]]]

# Why a word differs, in the order in which the reasons are tried.
SPECIAL = "a special token, spelled out: one token there, text here"
LONG = "of 101 to 200 characters: [UNK] there, word pieces here"
PRIVATE = "a private or unassigned character: dropped there, [UNK] here"
SIGMA = "a capital sigma at the end of a word: σ there, ς here"
COMPOSED = "a decomposed accent: composed there, as it stands here"
PUNCTUATION = "a character that is punctuation in one Unicode version alone"
OTHER = "not explained"


def transformers_encode(kind: str, vocab: str, lower_case: bool) -> Encode:
    """Texts to ids by transformers' tokenizer; `kind` is "rust" or "python"."""
    if kind == "rust":
        from transformers import BertTokenizer

        with open(vocab, encoding="utf-8", newline="\n") as file:
            ids = {line.rstrip("\n"): number for number, line in enumerate(file)}
        tokenizer = BertTokenizer(vocab=ids, do_lower_case=lower_case)
        return lambda texts: tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    tokenizer = BertTokenizerLegacy(vocab, do_lower_case=lower_case)
    return lambda texts: [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in texts]


def reason(word: str, lower_case: bool) -> str:
    """Why transformers gives a whitespace-separated word other ids."""
    if any(token in word for token in SPECIAL_TOKENS.values()):
        return SPECIAL
    split = normalization.normalizer(lower_case, lower_case)(word)
    if any(100 < len(part) <= 200 for part in re.split(r"[\s!-/:-@\[-`{-~]+", split)):
        return LONG
    categories = {unicodedata.category(character) for character in word}
    if categories & {"Co", "Cn"}:
        return PRIVATE
    if lower_case and "Σ" in word:
        return SIGMA
    if not lower_case and not unicodedata.is_normalized("NFC", word):
        return COMPOSED
    if any(character in "\u166d\U000111c9" for character in word):
        return PUNCTUATION
    return OTHER


def differing(texts: Sequence[str], ours: Encode, theirs: Encode) -> Iterator[str]:
    """The words of texts whose ids differ; a whole text where its words alone do not show it."""
    for text, a, b in zip(texts, ours(texts), theirs(texts), strict=True):
        if a == b:
            continue
        words = text.split()
        found = [w for w, x, y in zip(words, ours(words), theirs(words), strict=True) if x != y]
        yield from found or [text]


def compare(
    lines: Iterable[str], ours: Encode, theirs: Encode, lower_case: bool
) -> dict[str, collections.Counter]:
    """{reason: how often each word that differs}."""
    found: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    batch: list[str] = []

    def flush():
        for word in differing(batch, ours, theirs):
            found[reason(word, lower_case)][word] += 1
        batch.clear()

    for line in lines:
        batch.append(line)
        if len(batch) == 1000:
            flush()
    flush()
    return dict(found)


def read_lines(paths: Iterable[str], counts: collections.Counter) -> Iterator[str]:
    """Every line that is not blank; counts lines, words and characters."""
    for path in paths:
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in file:
                line = line.rstrip("\n")
                if line.strip():
                    counts.update(lines=1, words=len(line.split()), characters=len(line))
                    yield line


def shown(word: str) -> str:
    """A word as printable text on one line of a table."""
    text = "".join(c if c.isprintable() and c != "|" else f"\\u{{{ord(c):x}}}" for c in word)
    return text if len(text) <= 40 else f"{text[:30]}... ({len(word)} characters)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--input", required=True, help="a pattern of text files")
    parser.add_argument("--tokenizer", choices=("rust", "python"), default="rust")
    parser.add_argument("--examples", type=int, default=6, help="words to show for each reason")
    flags = parser.parse_args()
    tokenizer = tokenization.load(flags.vocab)
    theirs = transformers_encode(flags.tokenizer, flags.vocab, tokenizer.lower_case)
    paths = sorted(glob.glob(flags.input))
    counts: collections.Counter = collections.Counter()
    begun = time.monotonic()
    found = compare(read_lines(paths, counts), tokenizer.encode_batch, theirs, tokenizer.lower_case)
    print(
        f"{flags.vocab.rsplit('/', 1)[-1]}, transformers' {flags.tokenizer} tokenizer: {len(paths)} files, "
        f"{counts['lines']:,} lines, {counts['words']:,} words, {counts['characters']:,} characters; "
        f"{sum(sum(c.values()) for c in found.values()):,} words differ; {time.monotonic() - begun:.0f} s"
    )
    for why, words in sorted(found.items(), key=lambda item: -sum(item[1].values())):
        examples = ", ".join(f"`{shown(word)}`" for word, _ in words.most_common(flags.examples))
        print(f"| {why} | {sum(words.values()):,} | {len(words):,} | {examples} |")


if __name__ == "__main__":
    main()
