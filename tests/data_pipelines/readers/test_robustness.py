"""Whatever a file holds, a reader ends, within its memory, with documents or one line for the user."""

import contextlib
import random
import time
import tracemalloc

import pytest
from support.mutations import COMPRESS, UNITS

from bert_jax.errors import UserError
from data_pipelines import readers


def bad_input(rng):
    kind = rng.randrange(4)
    if kind == 0:
        data = rng.randbytes(rng.randrange(3000))
    elif kind == 1:
        data = b"".join(rng.choices(UNITS, k=rng.randrange(300)))
    else:
        data = rng.choice(UNITS) * rng.choice([10, 1000, 20_000])
        data += rng.choice(UNITS) * rng.choice([0, 1000])
    if rng.random() < 0.5:
        data = b"<page><ns>0</ns><id>1</id><text>" + data + rng.choice([b"", b"</text></page>"])
    name = rng.choice(["", "", *COMPRESS])
    data = COMPRESS[name](data)
    return name, data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data


def check(folder, seed):
    name, data = bad_input(random.Random(seed))
    path = folder / f"bad.txt{name}"
    path.write_bytes(data)
    for format in readers.FORMATS:
        begun = time.process_time()
        try:
            for range_ in readers.split_ranges([str(path)], max(1, len(data) // 3), format):
                for document in readers.read_documents(range_, format):
                    assert document.passages and all(p.strip() for p in document.passages)
                    document.key.encode() and "".join(document.passages).encode()
        except UserError as error:
            assert "\n" not in str(error)
        assert time.process_time() - begun < 30, (seed, format)  # a hang, not slowness


@pytest.mark.long
def test_bad_inputs(tmp_path):
    for seed in range(200):
        check(tmp_path, seed)


@pytest.mark.slow
def test_many_bad_inputs(tmp_path):
    for seed in range(200, 2200):
        check(tmp_path, seed)


@pytest.mark.parametrize("format", list(readers.FORMATS))
def test_memory_is_bounded_on_a_line_without_end(tmp_path, format):
    path = tmp_path / "long.txt"
    head = {"wikipedia_xml": b"<page><ns>0</ns><id>1</id><text>", "jsonl": b'{"text": "ok"}\n{"text": "'}
    head["csv"] = b'text\nok\n"'
    path.write_bytes(head.get(format, b"") + (b"w" * 49 + b" ") * 800_000)
    tracemalloc.start()
    refused = pytest.raises(UserError) if format == "csv" else contextlib.nullcontext()
    with refused:
        for range_ in readers.split_ranges([str(path)], 1 << 30, format):
            for _ in readers.read_documents(range_, format):
                pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6
