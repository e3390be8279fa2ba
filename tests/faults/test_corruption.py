"""Corruptions of records, each determined by its number.

Each is detected, which is an error of one line, or the data is the same bit for bit.
"""

import collections
import random
import shutil

import numpy as np
from support import processes

from bert_jax.data import records, tfrecord
from bert_jax.errors import UserError

SAME, DETECTED, WRONG = "the same data", "detected", "wrong data"


def damage_file(rng, file):
    """Changes bytes of a file; returns a description."""
    data = bytearray(file.read_bytes())
    kind = rng.choice(
        ["a bit flipped", "truncated", "bytes zeroed", "bytes repeated", "bytes removed", "emptied"]
    )
    at = rng.randrange(len(data)) if data else 0
    to = min(len(data), at + rng.choice([1, 16, 400, 4096]))
    if kind == "a bit flipped" and data:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "truncated":
        del data[at:]
    elif kind == "bytes zeroed":
        data[at:to] = bytes(to - at)
    elif kind == "bytes repeated":
        data[at:at] = data[at:to]
    elif kind == "bytes removed":
        del data[at:to]
    else:
        data.clear()
    file.write_bytes(data)
    return kind


class Subject:
    """A folder that `write` fills and `read` reads. Corruptions may use files of a second such folder."""

    skipped: tuple[str, ...] = ()  # files without a digest

    def __init__(self, folder):
        self.sound, self.other, self.case = folder / "sound", folder / "other", folder / "case"
        self.write(self.sound, 0)
        self.write(self.other, 1)
        self.expected = self.read(self.sound)

    def write(self, folder, seed):
        raise NotImplementedError

    def read(self, folder):
        """Returns {name: array or another value}."""
        raise NotImplementedError

    def damage(self, rng):
        """Damages the files of `case`; returns a description."""
        files = sorted(x for x in self.case.rglob("*") if x.is_file() and x.name not in self.skipped)
        kind = rng.choice(["bytes", "bytes", "bytes", "lost", "of another", "exchanged"])
        file, second = rng.choice(files), rng.choice(files)
        if kind == "bytes":
            return damage_file(rng, file)
        if kind == "lost":
            file.unlink()
        elif kind == "of another":
            other = self.other / file.relative_to(self.case)
            files = sorted(x for x in self.other.rglob("*") if x.is_file())
            shutil.copy(other if other.exists() else rng.choice(files), file)
        else:
            contents = file.read_bytes(), second.read_bytes()
            second.write_bytes(contents[0])
            file.write_bytes(contents[1])
        return f"{kind}: {file.name}"

    def outcome(self):
        try:
            found = self.read(self.case)
        except UserError as error:
            return WRONG if "\n" in str(error) else DETECTED
        same = found.keys() == self.expected.keys() and all(
            np.array_equal(found[name], x) if isinstance(x, np.ndarray) else found[name] == x
            for name, x in self.expected.items()
        )
        return SAME if same else WRONG


class Records(Subject):
    skipped = ("manifest.json", "vocab.txt")

    def write(self, folder, seed):
        processes.write_records(folder, rows=60, eval_rows=10, seed=seed)

    def read(self, folder):
        found = {}
        for split in ("train", "eval"):
            dataset = records.open_dataset(str(folder), split)
            batch = dataset.batch(np.arange(len(dataset)))
            found |= {f"{split} {name}": array for name, array in batch.items()}
        return found

    def damage(self, rng):
        """Also changes rows so that the file itself stays valid."""
        if rng.random() < 0.6:
            return super().damage(rng)
        path = str(rng.choice(sorted(self.case.glob("*.tfrecord"))))
        kind, payloads = rng.choice(["replaced", "swapped", "repeated"]), list(tfrecord.RecordFile(path))
        one, other = rng.sample(range(len(payloads)), 2)
        if kind == "replaced":
            payloads[one] = payloads[other]
        elif kind == "swapped":
            payloads[one], payloads[other] = payloads[other], payloads[one]
        else:
            payloads.insert(one, payloads[one])
        tfrecord.write_records(path, payloads)
        return f"a row {kind}"


def try_all(subject, count):
    """Returns ({outcome: count}, a list of "NUMBER CORRUPTION: what went wrong")."""
    outcomes, wrong = collections.Counter(), []
    for number in range(count):
        shutil.rmtree(subject.case, ignore_errors=True)
        shutil.copytree(subject.sound, subject.case)
        corruption = subject.damage(random.Random(f"{type(subject).__name__} {number}"))
        try:
            outcome = subject.outcome()
        except Exception as error:
            outcome = f"{type(error).__name__}: {error!s:.300}"
        outcomes[outcome] += 1
        if outcome not in (SAME, DETECTED):
            wrong.append(f"{number} {corruption}: {outcome}")
    return outcomes, wrong


def test_a_sample_of_corruptions(tmp_path):
    outcomes, wrong = try_all(Records(tmp_path), 60)
    assert not wrong
    assert outcomes[DETECTED] > 8
