"""Data of the demo: the task, and sentences with masks."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

from bert_jax.io import files
from bert_jax.tasks import writers

_NO_MARK = "O"
_TAGS = {",": "B-COMMA", ".": "B-PERIOD", "?": "B-PERIOD", "!": "B-PERIOD"}
_AROUND = "()[]\"'`*"
_SENTENCES = 3  # of a text of the task
_WORDS = range(12, 61)  # number of words of such a text
_SHORT = range(6, 15)  # number of words of a sentence with a mask

Text = list[tuple[str, str]]  # words and their tags


def punctuation(text: str) -> Text:
    """Returns the words of a text in lower case without punctuation, each with the mark that followed it.

    The tags are B-COMMA, B-PERIOD (of question and exclamation marks, too) and O. The case of letters and
    other marks around words are dropped: they would give the ends of sentences away.
    """
    words: list[tuple[str, str]] = []
    for written in text.split():
        word = written.strip(_AROUND)
        bare = word.rstrip(",.:;?!" + _AROUND).lower()
        mark = next((_TAGS[each] for each in word[len(bare) :] if each in _TAGS), _NO_MARK)
        if bare:
            words.append((bare, mark))
        elif words and mark != _NO_MARK:
            words[-1] = words[-1][0], mark
    return words


def make_task(documents: Sequence, train_examples: int, seed: int = 0) -> tuple[list[Text], list[Text]]:
    """Returns shuffled (train, dev) texts of three sentences that follow each other, see `punctuation`.

    Args:
        documents: documents of `data_pipelines.python_docs`.
        train_examples: number of texts for training; the others are dev texts.
        seed: seed of the shuffle.
    """
    texts = [
        punctuation(" ".join(document.sentences[start : start + _SENTENCES]))
        for document in documents
        for start in range(0, len(document.sentences) - _SENTENCES + 1, _SENTENCES)
    ]
    texts = [text for text in texts if len(text) in _WORDS]
    random.Random(seed).shuffle(texts)
    return texts[:train_examples], texts[train_examples:]


def write_task(path: Path, texts: Sequence[Text]) -> None:
    """Writes texts to a JSON lines file of `finetune/tagging`, atomically."""
    files.make_directory(path.parent)
    rows = ({"words": [word for word, _ in text], "tags": [tag for _, tag in text]} for text in texts)
    writers.write_json_lines(str(path), rows)


def choose_masks(sentences: Sequence[str], words: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (sentence, word) pairs: the first short sentence with each of `words`, and [MASK] in its place.

    Words without such a sentence are left out, and no sentence is used twice.
    """
    chosen, used = [], set()
    for word in words:
        pattern = re.compile(rf"\b{word}\b")
        for sentence in sentences:
            # The first word is never masked, because its capital letter would give it away.
            inner = pattern.search(sentence, 1)
            if len(sentence.split()) in _SHORT and sentence not in used and inner:
                chosen.append((sentence[: inner.start()] + "[MASK]" + sentence[inner.end() :], word))
                used.add(sentence)
                break
    return chosen
