"""A sample of a corpus to learn a vocabulary from, and a part of it held out to measure it on."""

import collections
import dataclasses
import hashlib
import io
import random
from collections.abc import Iterator, Mapping, Sequence

from bert_jax.errors import UserError
from bert_jax.io.progress import Progress
from data_pipelines import readers

_HELD_OUT_BYTES = 2_000_000
_MOST_COPIES = 100


class Sample:
    """Documents of a corpus, raw, and their size in bytes of UTF-8 (characters, where that is enough)."""

    def __init__(self) -> None:
        self.documents: list[readers.Document] = []
        self.size = 0

    def add(self, document: readers.Document) -> None:
        self.documents.append(document)
        self.size += sum(map(len, document.passages))

    def passages(self) -> Iterator[str]:
        for document in self.documents:
            yield from document.passages

    def drain(self) -> Iterator[readers.Document]:
        """Yields the documents and forgets each, so that they and what is made of them don't add up."""
        self.documents.reverse()
        while self.documents:
            yield self.documents.pop()


@dataclasses.dataclass(frozen=True)
class Part:
    """What was sampled of one input.

    Attributes:
        name: The input, as it was given.
        size: Bytes of its files, as they are on the disk.
        training: Documents to learn from, which learning uses up, and `documents` and `bytes` of them.
        held_out: Documents kept from these; none of a corpus that has too few passages.
        copies: How often each document is learned from.
        counts: What was met in what was read, as `readers.read_documents` counts it.
    """

    name: str
    size: int
    training: Sample
    documents: int
    bytes: int
    held_out: Sample
    copies: int
    counts: Mapping[str, int]


def sample(
    inputs: Sequence[str],
    format: str,
    sample_bytes: int,
    seed: int,
    exponent: float = 1.0,
    fields: readers.Fields = readers.Fields(),  # noqa: B008 (frozen)
    tfds_data_dir: str = "",
    progress: Progress | None = None,
) -> list[Part]:
    """Samples each input for itself.

    Args:
        inputs: Patterns, as `readers.list_inputs` takes them; of a multilingual corpus, one for a language.
        format: One of `readers.FORMATS`.
        sample_bytes: Of all inputs together.
        seed: Of what is drawn.
        exponent: An input's part of the sample is in proportion to its size to the power of this: 1 leaves
            the sizes as they are, and .7 is multilingual BERT's. An input that is smaller than its part is
            learned from several times.
        fields: What to read of records, as `readers.read_documents` takes it.
        tfds_data_dir: As `readers.list_inputs` takes it.
        progress: What shows how much is read; the caller closes it.

    Raises:
        UserError: No text, or a file in two of the inputs.
    """
    if exponent == 1:
        paths, inputs = [readers.list_inputs(inputs, tfds_data_dir)], [", ".join(inputs)]
    else:
        paths = [readers.list_inputs(pattern, tfds_data_dir) for pattern in inputs]
    owners: dict[str, str] = {}
    for name, files in zip(inputs, paths, strict=True):
        for path in files:
            if path in owners:
                raise UserError(f"{path} is in --input={owners[path]} and in --input={name}; give it once")
            owners[path] = name
    sizes = [sum(map(readers.file_size, files)) for files in paths]
    weights = [size**exponent for size in sizes]
    parts = []
    for name, files, size, weight in zip(inputs, paths, sizes, weights, strict=True):
        wanted = max(1000, int(sample_bytes * weight / sum(weights)))
        counts: collections.Counter[str] = collections.Counter()
        drawn = _draw(files, format, wanted, seed, fields, counts, progress or Progress(io.StringIO()))
        training, held_out = _hold_out(drawn, seed)
        # Compressed text is larger than its file, so what was read decides.
        copies = round(wanted / max(1, training.size)) if exponent != 1 and size <= wanted else 1
        copies = min(max(1, copies), _MOST_COPIES)
        documents, drawn = len(training.documents), training.size
        parts.append(Part(name, size, training, documents, drawn, held_out, copies, counts))
    return parts


def _draw(
    paths: Sequence[str],
    format: str,
    sample_bytes: int,
    seed: int,
    fields: readers.Fields,
    counts: collections.Counter[str],
    progress: Progress,
) -> list[readers.Document]:
    """Documents of byte ranges from all over the files, in the order of their keys."""
    total = sum(map(readers.file_size, paths))
    ranges = readers.split_ranges(paths, max(1 << 16, min(1 << 22, sample_bytes // 16)), format)
    share = min(1.0, sample_bytes / total)
    random.Random(seed).shuffle(ranges)
    drawn = Sample()
    # Of compressed files it is not known how much text they hold.
    known = all(range_.end is not None for range_ in ranges)
    progress.start("reading", min(total, sample_bytes) if known else None, "MB", 1e-6)
    for range_ in ranges:
        # A compressed file is one range and can't be entered in the middle: each gives of its beginning.
        quota = sample_bytes if range_.end is not None else int(sample_bytes * range_.size / total) + 1
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
    # The order of the ranges is drawn; that of the text is the corpus's, so that equal samples are equal
    # lists.
    return sorted(drawn.documents, key=lambda document: document.key)


def _hold_out(documents: Sequence[readers.Document], seed: int) -> tuple[Sample, Sample]:
    training, held_out = Sample(), Sample()
    drawn = [_hash(document.key, seed) % 20 == 0 for document in documents]
    whole = len(documents) >= 20 and 1 <= sum(drawn) <= len(documents) // 2
    for document, out in zip(documents, drawn, strict=True):
        if whole:
            (held_out if out and held_out.size < _HELD_OUT_BYTES else training).add(document)
            continue
        # Too few documents: every twentieth of their passages.
        for parts, into in (
            (tuple(p for i, p in enumerate(document.passages) if i % 20 != 19), training),
            (document.passages[19::20], held_out),
        ):
            if parts:
                into.add(dataclasses.replace(document, passages=parts))
    return training, held_out


def _hash(key: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {key}".encode(), digest_size=8).digest(), "little")
