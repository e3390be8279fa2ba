"""Corruptions of records, checkpoints, runs and best.json, each determined by its number.

Each is detected, which is an error of one line or the checkpoint before, or the data is the same bit for bit.
"""

import collections
import contextlib
import json
import random
import resource
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from support import processes, states
from support.conversions import random_model
from support.vocabularies import VOCABULARY, WORDPIECES

from bert_jax import tokenization
from bert_jax.convert import formats, loading
from bert_jax.data import records, tfrecord
from bert_jax.errors import UserError
from bert_jax.io import json_files
from bert_jax.models.config import EncoderConfig
from bert_jax.parallel import sharding
from bert_jax.training.evaluators import read_best

SAME, DETECTED, WRONG = "the same data", "detected", "wrong data"
SECONDS = 60  # to read one input; a hang, not slowness
BYTES = 3 << 30  # of address space that reading may take


@contextlib.contextmanager
def limits():
    """Ends what takes more than SECONDS by TimeoutError, and what takes more than BYTES by MemoryError."""

    def stop(number, frame):
        raise TimeoutError(f"over {SECONDS} seconds")

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def damage_file(rng, file):
    """Changes a file's bytes; returns how."""
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
    """A folder that `write` fills and `read` reads; another one's files may take the place of its own."""

    skipped: tuple[str, ...] = ()  # files without a digest

    def __init__(self, folder):
        self.sound, self.other, self.case = folder / "sound", folder / "other", folder / "case"
        self.write(self.sound, 0)
        self.write(self.other, 1)
        self.expected = self.read(self.sound)

    def write(self, folder, seed):
        raise NotImplementedError

    def read(self, folder):
        """{name: array, or another value}"""
        raise NotImplementedError

    def damage(self, rng):
        """Damages the files of `case`; returns how."""
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
            with limits():
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
        """Also changes rows, in a file that is valid by itself."""
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


class Checkpoints(Subject):
    """Step 4 of a directory that also has step 2; the files of step 2 may take the place of its own."""

    def __init__(self, folder):
        self.mesh = sharding.make_mesh(data=len(jax.devices()))
        self.states = {step: states.make_state(self.mesh, step) for step in (2, 4)}
        self.sound, self.whole = folder / "sound", folder / "whole"
        self.case, self.other = self.whole / "4", self.whole / "2"
        states.save(self.sound, (2, 4), self.mesh)

    def outcome(self):
        try:
            with limits():
                target = states.abstract(self.states[4])
                (step, state), _ = states.restore_latest(self.whole, target)
        except UserError as error:
            return WRONG if "\n" in str(error) else DETECTED
        leaves = zip(*map(jax.tree.leaves, (state, self.states[step])), strict=True)
        if not all(np.array_equal(np.asarray(one), np.asarray(other)) for one, other in leaves):
            return WRONG
        return SAME if step == 4 else DETECTED


class Models(Subject):
    def read(self, folder):
        model = loading.load(folder, log=lambda line: None)
        about = [model.config, model.head, model.labels, model.problem_type, model.sentence, model.scores]
        tokens = model.tokenizer and (model.tokenizer.tokens, model.tokenizer.lower_case)
        return model.params | {"about": [*about, tokens]}


class Runs(Models):
    """Work directories as a conversion writes them."""

    skipped = ("config.json",)

    def write(self, folder, seed):
        vocabulary = folder.with_suffix(".txt")
        vocabulary.write_text(VOCABULARY + "new\n" * seed)
        sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        config = EncoderConfig(vocab_size=len(WORDPIECES) + 1, max_position_embeddings=16, **sizes)
        model = random_model(config, "sequence_classification", seed)
        formats.get("bert_jax").write(model.replace(tokenizer=tokenization.load(vocabulary)), folder)


class Best(Subject):
    """The description of the best checkpoint of a run."""

    def write(self, folder, seed):
        best = {"step": 40, "metric": "f1", "since_best": 2, "last_step": 60, "degenerate": False}
        best |= {"scores": {"f1": 0.8125, "accuracy": 0.9}}
        folder.mkdir()
        (folder / "best.json").write_text(json.dumps(json_files.sealed(best), indent=2) + "\n")

    def read(self, folder):
        return {"best": read_best(folder)}

    def damage(self, rng):
        return damage_file(rng, self.case / "best.json")


def try_all(subject, count):
    """({outcome: number}, "NUMBER CORRUPTION: what went wrong")."""
    outcomes, wrong = collections.Counter(), []
    whole = getattr(subject, "whole", subject.case)
    for number in range(count):
        shutil.rmtree(whole, ignore_errors=True)
        shutil.copytree(subject.sound, whole)
        corruption = subject.damage(random.Random(f"{type(subject).__name__} {number}"))
        try:
            outcome = subject.outcome()
        except Exception as error:
            outcome = f"{type(error).__name__}: {error!s:.300}"
        outcomes[outcome] += 1
        if outcome not in (SAME, DETECTED):
            wrong.append(f"{number} {corruption}: {outcome}")
    return outcomes, wrong


@pytest.mark.parametrize(
    "kind, count",
    [
        (Records, 60),
        (Checkpoints, 12),
        (Best, 200),
        pytest.param(Runs, 30, marks=pytest.mark.long),
    ],
)
def test_a_sample_of_corruptions(tmp_path, kind, count):
    outcomes, wrong = try_all(kind(tmp_path), count)
    assert not wrong
    assert outcomes[DETECTED] > count / 8


def test_wrong_data_is_seen(tmp_path):
    """Without the digests of the manifest, records that were swapped are not noticed."""
    subject = Records(tmp_path)
    manifest = json.loads((subject.sound / "manifest.json").read_text())
    for split in manifest["splits"].values():
        for entry in split["files"]:
            del entry["crc32c"]
    (subject.sound / "manifest.json").write_text(json.dumps(manifest))
    outcomes, _ = try_all(subject, 60)
    assert outcomes[WRONG]
