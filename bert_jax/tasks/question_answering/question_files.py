"""Reads questions about texts from SQuAD's JSON files (1.1 and 2.0), JSON lines, Parquet or Arrow."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bert_jax.errors import UserError, reading
from bert_jax.io import columnar, compression
from bert_jax.tasks.table import COLUMNAR, FileReport, Malformed, detect_format, encodable, json_text, records

FORMATS = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    **dict.fromkeys(columnar.SUFFIXES, COLUMNAR),
}
NO_ANSWER = -1  # the start for a question without an answer
UNKNOWN = -2  # the start for an answer that is missing, or not at the position given in the file

BETWEEN_WORDS = re.compile("[ \t\r\n\u202f]+")  # separates the words of a context, as in google-research/bert
_LONGEST_WORD = 1000  # characters searched on each side of an answer, to limit the time

# The columns of a file by their names in SQuAD. `answers` is a list of {text, answer_start}, an object with
# two lists (as in Hugging Face's `datasets`), or a single string with its position in `answer_start`.
KEYS = {name: name for name in ("question", "context", "answers", "answer_start", "id", "is_impossible")}


@dataclasses.dataclass
class Questions(FileReport):
    """The questions of one file by column: entry i of every list except `contexts` belongs to question i.

    Attributes:
        contexts: the distinct contexts; the context of question i is `contexts[context_of[i]]`.
        answers: the answer texts of each question; empty if there is no answer.
        starts: the character position of the first answer in the context, or `NO_ANSWER` or `UNKNOWN`.
    """

    unit = "question"
    columns = ("ids", "questions", "context_of", "answers", "starts")

    path: str
    ids: list[str] = dataclasses.field(default_factory=list)
    questions: list[str] = dataclasses.field(default_factory=list)
    contexts: list[str] = dataclasses.field(default_factory=list)
    context_of: list[int] = dataclasses.field(default_factory=list)
    answers: list[list[str]] = dataclasses.field(default_factory=list)
    starts: list[int] = dataclasses.field(default_factory=list)
    _places: dict[str, int] = dataclasses.field(default_factory=dict, repr=False)  # of the contexts

    def __len__(self) -> int:
        return len(self.ids)

    def add(
        self, id: str, question: str, context: str, answers: Sequence[str] = (), start: int = UNKNOWN
    ) -> None:
        """Appends a question."""
        place = self._places.setdefault(context, len(self.contexts))
        if place == len(self.contexts):
            self.contexts.append(context)
        self.ids.append(id)
        self.questions.append(question)
        self.context_of.append(place)
        self.answers.append(list(answers))
        self.starts.append(start)


def read_questions(
    path: str,
    *,
    keys: Mapping[str, str] = MappingProxyType({}),
    file_format: str = "auto",
    v2: bool = False,
    labeled: bool = True,
    training: bool = False,
) -> Questions:
    """Reads a whole file of questions, in UTF-8 and possibly compressed (.gz, .bz2, .xz, .zst).

    `keys` are {name in `KEYS`: column} for columns with other names. With `labeled`, every question must have
    an answer, unless `v2` is set and the list of answers is empty or the question is marked as unanswerable.
    With `training`, the first answer must be at its `answer_start`; scoring uses only the texts.
    """
    path = str(path)
    kind = detect_format(FORMATS, path, file_format)
    names = {**KEYS, **keys}
    out, seen = Questions(path), set()

    def add(row: dict[str, Any]) -> None:
        item = {name: row.get(key) for name, key in names.items()}
        if item["id"] is None and kind != "json" and names["id"] == KEYS["id"]:
            item["id"] = out.rows - 1
        id_ = json_text(item["id"], "id", names["id"])
        try:
            if id_ in seen:
                raise Malformed("another question has this id")
            seen.add(id_)
            out.add(id_, *_question(item, v2, labeled, training))
        except Malformed as error:
            raise Malformed(f"question {id_!r}: {error}") from None

    rows = squad_items(path) if kind == "json" else records(path, kind)
    out.fill(((f"{path}:{place}", row) for place, row in rows), add)
    out.check()
    return out


def _question(
    item: dict[str, Any], v2: bool, labeled: bool, training: bool
) -> tuple[str, str, list[str], int]:
    question, context = text_of(item, "question"), text_of(item, "context")
    answers, start = _answers(item, v2) if labeled else ([], UNKNOWN)
    if training and item["is_impossible"] is True:
        answers, start = [], NO_ANSWER
    if answers and not _is_in_context(context, answers[0], start):
        if training:
            raise Malformed(f"the answer {answers[0][:60]!r} is not at its answer_start, {start}")
        start = UNKNOWN
    return question, context, answers, start


def text_of(item: Mapping[str, Any], name: str) -> str:
    """Returns a text of a JSON object by name. Raises Malformed if it is empty or not a string."""
    if not isinstance(item.get(name), str) or not item[name].strip():
        raise Malformed(f"{name!r} is not a text, or empty")
    return encodable(item[name])


def _answers(item: dict[str, Any], v2: bool) -> tuple[list[str], int]:
    answers = item["answers"]
    if isinstance(answers, str):
        answers = [{"text": answers, "answer_start": item["answer_start"]}]
    elif isinstance(answers, dict) and isinstance(answers.get("text"), list):
        starts = answers.get("answer_start") or [None] * len(answers["text"])
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(answers["text"], starts, strict=False)
        ]
    if not answers and v2 and (answers is not None or item["is_impossible"] is True):
        return [], NO_ANSWER
    if not isinstance(answers, list) or not answers or not all(isinstance(one, dict) for one in answers):
        raise Malformed("no 'answers', a list of {'text', 'answer_start'}; without one set v2=true")
    start = answers[0].get("answer_start")
    if not (start is None or isinstance(start, int)):
        raise Malformed(f"answer_start is {start!r}, expected a whole number")
    texts: list[Any] = [answer.get("text") for answer in answers]
    if not all(isinstance(text, str) for text in texts) or not texts[0].strip():
        raise Malformed("an answer without 'text'")
    return [encodable(text) for text in texts], UNKNOWN if start is None else start


def _is_in_context(context: str, answer: str, start: int) -> bool:
    """Returns whether an answer is at `start`, or at least within the words that it touches.

    This is the rule of google-research/bert.
    """
    end = start + len(answer)
    if start < 0 or end > len(context):
        return False
    if context[start:end] == answer:
        return True
    first = max(0, start - _LONGEST_WORD)
    text, start, end = context[first : end + _LONGEST_WORD], start - first, end - first
    before = [match.end() for match in BETWEEN_WORDS.finditer(text, 0, start + 1)]
    begin = before[-1] if before else 0
    after = BETWEEN_WORDS.search(text, end)
    words = BETWEEN_WORDS.sub(" ", text[min(begin, start) : after.start() if after else len(text)])
    return " ".join(answer.split()) in words


def squad_items(path: str) -> Iterator[tuple[str, Any]]:
    """Yields (place, question with its context) of a file. Raises UserError if it lacks SQuAD's layout."""
    try:
        with reading(path), compression.opened(path) as file:
            content = json.loads(file.read().decode("utf-8-sig"))
        for i, entry in enumerate(content["data"]):
            for j, paragraph in enumerate(entry["paragraphs"]):
                for k, question in enumerate(paragraph["qas"]):
                    item = {**question, "context": paragraph.get("context")}
                    yield f" data[{i}].paragraphs[{j}].qas[{k}]", item
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path} does not have SQuAD's layout, data/paragraphs/qas ({error})") from None
