"""Corruptions of records, each determined by its number.

Each is detected, which is an error of one line, or the data is the same bit for bit.
"""

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


class Records:
    """A folder of records. Corruptions may use files of a second such folder."""

    def __init__(self, folder):
        self.sound, self.other, self.case = folder / "sound", folder / "other", folder / "case"
        for seed, each in enumerate((self.sound, self.other)):
            processes.write_records(each, rows=60, eval_rows=10, seed=seed)
        self.expected = self.read(self.sound)

    def read(self, folder):
        """Returns {name: array}."""
        found = {}
        for split in ("train", "eval"):
            dataset = records.open_dataset(str(folder), split)
            batch = dataset.batch(np.arange(len(dataset)))
            found |= {f"{split} {name}": array for name, array in batch.items()}
        return found

    def damage(self, rng):
        """Damages the files of `case`, or rows so that the file itself stays valid; returns a description."""
        return self.damage_files(rng) if rng.random() < 0.6 else self.damage_rows(rng)

    def damage_files(self, rng):
        without_digest = ("manifest.json", "vocab.txt")
        files = sorted(x for x in self.case.rglob("*") if x.is_file() and x.name not in without_digest)
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

    def damage_rows(self, rng):
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

    def outcome(self):
        try:
            found = self.read(self.case)
        except UserError as error:
            return WRONG if "\n" in str(error) else DETECTED
        same = found.keys() == self.expected.keys() and all(
            np.array_equal(found[name], x) for name, x in self.expected.items()
        )
        return SAME if same else WRONG


def test_a_sample_of_corruptions(tmp_path):
    subject, detected, wrong = Records(tmp_path), 0, []
    for number in range(60):
        shutil.rmtree(subject.case, ignore_errors=True)
        shutil.copytree(subject.sound, subject.case)
        corruption = subject.damage(random.Random(f"Records {number}"))
        try:
            outcome = subject.outcome()
        except Exception as error:
            outcome = f"{type(error).__name__}: {error!s:.300}"
        detected += outcome == DETECTED
        if outcome not in (SAME, DETECTED):
            wrong.append(f"{number} {corruption}: {outcome}")
    assert not wrong
    assert detected > 8
