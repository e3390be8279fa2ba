"""A build that is killed, at any moment, ends with the bytes of one that was left alone."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.data import manifests

ROOT = Path(__file__).resolve().parents[2]
KILLS = 10


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, vocabulary):
    """1,500 documents in three files, and ten copies of one that cleaning finds."""
    words = Path(vocabulary).read_text().split()[5:]
    rng = random.Random(3)
    documents = [
        "\n".join(f"{' '.join(rng.choices(words, k=rng.randint(4, 30)))}." for _ in range(rng.randint(5, 60)))
        for _ in range(1500)
    ]
    documents += documents[:10]
    folder = tmp_path_factory.mktemp("killed")
    for number in range(3):
        (folder / f"{number}.txt").write_text("\n\n".join(documents[number::3]) + "\n")
    return folder


def start(corpus, vocabulary, output, schema):
    command = [sys.executable, "-m", "bert_jax", "data", f"--input={corpus}", f"--vocab={vocabulary}"]
    command += [f"--output={output}", "--workers=2", "--max_seq_length=64", f"--schema={schema}"]
    command += ["--dupe_factor=4", "--num_shards=3", "--clean=unicode,exact", "--eval_fraction=0.1"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def contents(directory):
    return {path.name: path.read_bytes() for path in Path(directory).iterdir() if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("schema", ["packed", "google"])
def test_killed_ten_times_at_random_moments(corpus, vocabulary, tmp_path, schema):
    begun = time.monotonic()
    assert start(corpus, vocabulary, tmp_path / "whole", schema).wait() == 0
    duration = time.monotonic() - begun
    rng, killed, number = random.Random(schema), 0, 0
    while killed < KILLS:  # on a busy machine, many builds are done before their moment comes
        number += 1
        assert number <= 4 * KILLS
        output = tmp_path / f"killed-{number}"
        for moment in (rng.uniform(0.1, 0.8), rng.uniform(0.1, 0.6)):  # the second time while it goes on
            process = start(corpus, vocabulary, output, schema)
            time.sleep(moment * duration)
            killed += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert start(corpus, vocabulary, output, schema).wait() == 0
        assert contents(output) == contents(tmp_path / "whole")
        assert os.path.exists(output / manifests.FILE) and not os.path.exists(output / "unfinished")
