"""Corruptions of records, each determined by its number.

Each is detected, which is an error of one line, or the data is the same bit for bit.
"""

import random
import shutil

import numpy as np
from support import processes

from bert_jax.data import records, tfrecord
from bert_jax.errors import UserError


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


def read(folder):
    """Returns {name: array} of records."""
    found = {}
    for split in ("train", "eval"):
        dataset = records.open_dataset(str(folder), split)
        batch = dataset.batch(np.arange(len(dataset)))
        found |= {f"{split} {name}": array for name, array in batch.items()}
    return found


def damage_files(rng, folder, other):
    """Damages a file of a folder, or replaces it by one of another folder; returns a description."""
    without_digest = ("manifest.json", "vocab.txt")
    files = sorted(x for x in folder.rglob("*") if x.is_file() and x.name not in without_digest)
    kind = rng.choice(["bytes", "bytes", "bytes", "lost", "of another", "exchanged"])
    file, second = rng.choice(files), rng.choice(files)
    if kind == "bytes":
        return damage_file(rng, file)
    if kind == "lost":
        file.unlink()
    elif kind == "of another":
        shutil.copy(other / file.relative_to(folder), file)
    else:
        contents = file.read_bytes(), second.read_bytes()
        second.write_bytes(contents[0])
        file.write_bytes(contents[1])
    return f"{kind}: {file.name}"


def damage_rows(rng, folder):
    """Damages rows so that the file itself stays valid; returns a description."""
    path = str(rng.choice(sorted(folder.glob("*.tfrecord"))))
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


def test_a_sample_of_corruptions(tmp_path):
    sound, other, case = tmp_path / "sound", tmp_path / "other", tmp_path / "case"
    for seed, each in enumerate((sound, other)):
        processes.write_records(each, rows=60, eval_rows=10, seed=seed)
    expected, detected, wrong = read(sound), 0, []
    for number in range(60):
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(sound, case)
        rng = random.Random(f"Records {number}")
        corruption = damage_files(rng, case, other) if rng.random() < 0.6 else damage_rows(rng, case)
        try:
            found = read(case)
        except UserError as error:
            detected += 1
            wrong += [f"{number} {corruption}: {error}"] if "\n" in str(error) else []
            continue
        except Exception as error:
            wrong.append(f"{number} {corruption}: {type(error).__name__}: {error!s:.300}")
            continue
        same = [np.array_equal(found[name], x) for name, x in expected.items() if name in found]
        if found.keys() != expected.keys() or not all(same):
            wrong.append(f"{number} {corruption}: wrong data")
    assert not wrong
    assert detected > 8
