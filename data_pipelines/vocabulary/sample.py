"""Samples a corpus to train a vocabulary, and holds out a part of the sample to evaluate it."""

import collections
import dataclasses
import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

from bert_jax.errors import UserError
from bert_jax.io.progress import Progress
from data_pipelines import languages, readers
from data_pipelines.vocabulary.options import Options

_HELD_OUT_BYTES = 2_000_000


class Sample:
    """Documents of a corpus, and the size of their text in bytes."""

    def __init__(self) -> None:
        self.documents: list[readers.Document] = []
        self.size = 0

    def add(self, document: readers.Document) -> None:
        """Adds a document."""
        self.documents.append(document)
        self.size += document.size

    def passages(self) -> Iterator[str]:
        """Yields the passages of all documents."""
        for document in self.documents:
            yield from document.passages

    def some(self, size: float) -> list[readers.Document]:
        """Returns documents of about this size in bytes, chosen by a hash of their names."""
        chosen = sorted(self.documents, key=lambda document: _hash(document.key, 0))
        ends = list(itertools.accumulate((document.size for document in chosen), initial=0))
        return chosen[: min(range(len(ends)), key=lambda count: abs(ends[count] - size))]

    def drain(self) -> Iterator[readers.Document]:
        """Yields the documents and removes each one, to free its memory while its result is built up."""
        self.documents.reverse()
        while self.documents:
            yield self.documents.pop()


@dataclasses.dataclass(frozen=True)
class Part:
    """The sample of one input.

    Attributes:
        name: the input, as it was given.
        size: the size of its files on disk, in bytes.
        training: the documents to train on; training drains them.
        documents: the number of documents in `training`.
        bytes: the size of `training`.
        held_out: the documents that are held out; none if the corpus has too few passages.
        times: how often the documents are used in training; some of them once more than the others.
        counts: the counts of `readers.read_documents` for what was read.
    """

    name: str
    size: int
    training: Sample
    documents: int
    bytes: int
    held_out: Sample
    times: float
    counts: Mapping[str, int]


def sample(options: Options, sample_bytes: int, progress: Progress) -> list[Part]:
    """Samples each input separately, or, if `sampling_exponent` is 1, all inputs as one.

    The share of an input in what is learned is proportional to the size of its files raised to the power of
    `sampling_exponent`: 1 keeps the proportions, and multilingual BERT uses 0.7. An input that is smaller
    than its share is used several times, and the input that has the most text for its share is used once.

    Args:
        options: the options of the vocabulary; a multilingual corpus has one input per language.
        sample_bytes: the size of the sample of all inputs together.
        progress: shows how much has been read; the caller closes it.

    Raises:
        UserError: there is no text, or a file is in two of the inputs.
    """
    exponent = options.sampling_exponent
    if exponent == 1:
        paths = readers.list_inputs(options.input, options.output)
        divided = [languages.Language(", ".join(options.input), tuple(paths))]
    else:
        divided = languages.divide(options.input, options.output)
    every = [path for one in divided for path in one.paths]
    format = readers.resolve_format(every, options.input_format, options.fields)
    options = dataclasses.replace(options, input_format=format)
    sizes = [sum(map(readers.file_size, one.paths)) for one in divided]
    weights = [size**exponent for size in sizes]
    parts = []
    for one, size, weight in zip(divided, sizes, weights, strict=True):
        wanted = max(1000, int(sample_bytes * weight / sum(weights)))
        counts: collections.Counter[str] = collections.Counter()
        training, held_out = _hold_out(_draw(one.paths, wanted, options, counts, progress), options.seed)
        documents = len(training.documents)
        parts.append(Part(one.name, size, training, documents, training.size, held_out, 1.0, counts))
    # Compressed text is larger than its file, so these numbers depend on what was read.
    once = max(part.bytes / weight for part, weight in zip(parts, weights, strict=True))
    return [
        dataclasses.replace(part, times=round(once * weight / max(1, part.bytes), 9))
        for part, weight in zip(parts, weights, strict=True)
    ]


def _draw(
    paths: Sequence[str],
    sample_bytes: int,
    options: Options,
    counts: collections.Counter[str],
    progress: Progress,
) -> list[readers.Document]:
    """Returns the documents of byte ranges at random positions in the files, sorted by key."""
    total = sum(map(readers.file_size, paths))
    format, fields = options.input_format, options.fields
    target = max(1 << 16, min(1 << 22, sample_bytes // 16))
    ranges = readers.split_ranges(paths, target, format)
    share = min(1.0, sample_bytes / total)
    random.Random(options.seed).shuffle(ranges)
    drawn = Sample()
    # The size of the text in compressed files is not known in advance.
    known = all(range_.end is not None for range_ in ranges)
    progress.start("reading", min(total, sample_bytes) if known else None, "MB", 1e-6)
    for range_ in ranges:
        # Of a file that cannot be split, such as a compressed one or a table, the beginning is used.
        whole = range_.end is None or range_.size > 2 * target
        quota = int(sample_bytes * range_.size / total) + 1 if whole else sample_bytes
        goal = min(sample_bytes, drawn.size + quota)
        if share < 1 and drawn.size >= sample_bytes:
            break
        for document in readers.read_documents(range_, format, counts, fields):
            drawn.add(document)
            progress.at(drawn.size)
            if drawn.size >= goal:
                break
    if not drawn.size:
        raise UserError(readers.no_text(paths, format))
    # The order of the ranges is random. The documents are sorted, so that equal samples are equal lists.
    return sorted(drawn.documents, key=lambda document: document.key)


def _hold_out(documents: Sequence[readers.Document], seed: int) -> tuple[Sample, Sample]:
    training, held_out = Sample(), Sample()
    drawn = [_hash(document.key, seed) % 20 == 0 for document in documents]
    whole = len(documents) >= 20 and 1 <= sum(drawn) <= len(documents) // 2
    for document, out in zip(documents, drawn, strict=True):
        if whole:
            (held_out if out and held_out.size < _HELD_OUT_BYTES else training).add(document)
            continue
        # There are too few documents: every twentieth of their passages is held out.
        for parts, into in (
            (tuple(p for i, p in enumerate(document.passages) if i % 20 != 19), training),
            (document.passages[19::20], held_out),
        ):
            if parts:
                into.add(dataclasses.replace(document, passages=parts))
    return training, held_out


def _hash(key: str, seed: int) -> int:
    content = f"{seed} {key}".encode("utf-8", "surrogatepass")  # the name of a file need not be UTF-8
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
