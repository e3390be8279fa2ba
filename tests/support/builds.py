"""What tests of `bert-jax data` share: documents, sequences, the files of a directory, and interruptions."""

import contextlib
import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data import records
from data_pipelines import readers


def stream_documents(paths, format="text", target=1 << 30, counts=None, text_field="text"):
    """Yields the documents of a file or of several, which are read in ranges of about `target` bytes."""
    paths = paths if isinstance(paths, list) else [str(paths)]
    for range_ in readers.split_ranges(paths, target, format):
        yield from readers.read_documents(range_, format, counts, text_field)


def read_documents(*args, **options):
    return list(stream_documents(*args, **options))


def sequences(directory, split):
    """Yields (ids, number of ids of the first segment, label) of all sequences of a split."""
    dataset = records.open_dataset(directory, split)
    batch = dataset.batch(np.arange(len(dataset)))
    for row in range(len(dataset)):
        length = batch["lengths"][row]
        edges = [start for start in batch["starts"][row] if start < length] + [length]
        for number, (start, end) in enumerate(itertools.pairwise(edges)):
            fields = (batch[name][row, number] for name in ("first_lengths", "next_sentence_labels"))
            yield batch["input_ids"][row, start:end].tolist(), *map(int, fields)


def contents(directory):
    """{relative path: bytes} of all files under a directory."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in Path(directory).rglob("*") if p.is_file()}


@contextlib.contextmanager
def interrupted(moment, match=None):
    """Interrupts the block, as Ctrl-C would, at the n-th file that is about to be renamed to its name."""
    replace, count = os.replace, iter(range(10**6))

    def stop(*args):
        if next(count) == moment:
            raise KeyboardInterrupt
        replace(*args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt, match=match):
        patch.setattr(os, "replace", stop)
        yield
