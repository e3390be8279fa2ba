"""Corruptions, by number, of records, checkpoints, adapters, work directories and best.json.

They have to be detected or to change nothing.

`python tests/support/corruption.py KIND FIRST LAST` tries some and prints the outcomes.
"""

from __future__ import annotations

import collections
import json
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()

import numpy as np
from support import processes
from support.limits import limits

from bert_jax.data import records, tfrecord
from bert_jax.errors import UserError

SAME, DETECTED, WRONG = "the same data", "detected", "wrong data"


def damage_file(rng: random.Random, file: Path) -> str:
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


def prepare(directory: Path) -> None:
    """Changes the sound records before the first corruption; a test takes their digests away."""


class Records:
    """A directory of packed records with digests, and what is in it."""

    def __init__(self, folder: Path):
        self.sound = processes.write_records(folder / "sound", rows=60, eval_rows=10)
        prepare(self.sound)
        self.case = folder / "case"
        self.expected = self._read(self.sound)

    @staticmethod
    def _read(folder: Path) -> list[dict[str, np.ndarray]]:
        datasets = [records.open_dataset(str(folder), split) for split in ("train", "eval")]
        return [dataset.batch(np.arange(len(dataset))) for dataset in datasets]

    def try_one(self, rng: random.Random) -> tuple[str, str]:
        """(the corruption, what came of it)."""
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(self.sound, self.case)
        files = sorted(self.case.glob("*.tfrecord"))
        kind = rng.choice(
            ["bytes", "bytes", "index", "replaced", "swapped", "reordered", "lost", "exchanged", "repeated"]
        )
        file = rng.choice(files)
        if kind == "bytes":
            kind = damage_file(rng, file)
        elif kind == "index":
            kind = "index: " + damage_file(rng, Path(f"{file}.index"))
        elif kind == "lost":
            rng.choice([file, Path(f"{file}.index")]).unlink()
        elif kind == "exchanged":
            contents = [one.read_bytes() for one in files]
            for one, content in zip(files, reversed(contents), strict=True):
                one.write_bytes(content)
        else:
            self._rewrite(rng, file, kind)
        return kind, self._outcome(lambda: self._read(self.case))

    @staticmethod
    def _rewrite(rng: random.Random, file: Path, kind: str) -> None:
        payloads = list(tfrecord.RecordFile(str(file)))
        one, other = rng.sample(range(len(payloads)), 2)
        if kind == "replaced":
            payloads[one] = payloads[other]
        elif kind == "swapped":
            payloads[one], payloads[other] = payloads[other], payloads[one]
        elif kind == "repeated":
            payloads.insert(one, payloads[one])
        else:
            payloads.reverse()
        tfrecord.write_records(str(file), payloads)

    def _outcome(self, read: Callable[[], list[dict[str, np.ndarray]]]) -> str:
        try:
            with limits():
                found = read()
        except UserError as error:
            return DETECTED if "\n" not in str(error) else f"{WRONG}: a message of several lines"
        same = all(
            np.array_equal(one[name], other[name])
            for one, other in zip(found, self.expected, strict=True)
            for name in other
        )
        return SAME if same else WRONG


class Checkpoints:
    """A directory of two checkpoints, of which the newer one is damaged."""

    def __init__(self, folder: Path):
        # Here, since records need no devices.
        import jax
        from support import states

        from bert_jax import checkpoint
        from bert_jax.parallel import sharding

        self._jax, self._checkpoint, self._support = jax, checkpoint, states
        self.mesh = sharding.make_mesh(data=len(jax.devices()))
        self.sound, self.case = folder / "sound", folder / "case"
        states.save(self.sound, (2, 4), self.mesh)
        self.states = {step: states.make_state(self.mesh, step) for step in (2, 4)}

    def try_one(self, rng: random.Random) -> tuple[str, str]:
        """(the corruption, what came of it)."""
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(self.sound, self.case)
        step = self.case / "4"
        files = sorted(path for path in step.rglob("*") if path.is_file())
        kind = rng.choice(["bytes", "bytes", "bytes", "lost", "of another step", "exchanged"])
        file = rng.choice(files)
        if kind == "bytes":
            kind = damage_file(rng, file)
        elif kind == "lost":
            file.unlink()
        elif kind == "of another step":
            other = self.case / "2" / file.relative_to(step)
            candidates = (
                [other] if other.exists() else sorted(p for p in (self.case / "2").rglob("*") if p.is_file())
            )
            shutil.copy(rng.choice(candidates), file)
        else:
            other = rng.choice(files)
            contents = file.read_bytes(), other.read_bytes()
            other.write_bytes(contents[0])
            file.write_bytes(contents[1])
        return kind, self._outcome()

    def _outcome(self) -> str:
        try:
            with limits():
                target = self._support.abstract(self.states[4])
                (step, state), _ = self._support.restore_latest(self.case, target)
        except UserError as error:
            return DETECTED if "\n" not in str(error) else f"{WRONG}: a message of several lines"
        leaves = zip(*map(self._jax.tree.leaves, (state, self.states[step])), strict=True)
        if not all(np.array_equal(np.asarray(one), np.asarray(other)) for one, other in leaves):
            return WRONG
        return SAME if step == 4 else DETECTED


class Models:
    """A folder with a model, and another one whose files may replace its own."""

    skipped: tuple[str, ...] = ()

    def __init__(self, folder: Path):
        from bert_jax.convert import loading

        self._load = loading.load
        self.sound, self.other, self.case = folder / "sound", folder / "other", folder / "case"
        for seed, path in enumerate((self.sound, self.other)):
            self._write(path, seed)
        self.expected = self._read(self.sound)

    def _write(self, folder: Path, seed: int) -> None:
        raise NotImplementedError

    def _read(self, folder: Path) -> dict:
        model = self._load(folder, log=lambda line: None)
        about = [model.config, model.head, model.labels, model.problem_type, model.sentence, model.scores]
        tokens = model.tokenizer and (model.tokenizer.tokens, model.tokenizer.lower_case)
        return {"params": model.params, "about": [*about, tokens]}

    def try_one(self, rng: random.Random) -> tuple[str, str]:
        """(the corruption, what came of it)."""
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(self.sound, self.case)
        files = sorted(x for x in self.case.rglob("*") if x.is_file() and x.name not in self.skipped)
        kind = rng.choice(["bytes", "bytes", "bytes", "lost", "of another model", "exchanged"])
        file, second = rng.choice(files), rng.choice(files)
        if kind == "bytes":
            kind = damage_file(rng, file)
        elif kind == "lost":
            file.unlink()
        elif kind == "of another model":
            other = self.other / file.relative_to(self.case)
            shutil.copy(other if other.exists() else rng.choice(sorted(self.other.rglob("*.txt"))), file)
        else:
            contents = file.read_bytes(), second.read_bytes()
            second.write_bytes(contents[0])
            file.write_bytes(contents[1])
        try:
            with limits():
                found = self._read(self.case)
        except UserError as error:
            return kind, DETECTED if "\n" not in str(error) else f"{WRONG}: a message of several lines"
        params, expected = found["params"], self.expected["params"]
        same = params.keys() == expected.keys() and found["about"] == self.expected["about"]
        same = same and all(np.array_equal(params[name], x) for name, x in expected.items())
        return kind, SAME if same else f"{WRONG} after {file.name}"


class Adapters(Models):
    """PEFT folders that bert-jax wrote."""

    skipped = ("README.md",)

    def _write(self, folder: Path, seed: int) -> None:
        from bert_jax.convert import formats
        from bert_jax.convert.sentences import SentenceVectors

        source = Path(__file__).parents[1] / "testdata" / "peft" / "bert" / "adapter"
        model = self._load(source, log=lambda line: None)
        base, adapter = self._load(source.parent / "base"), model.adapter
        assert adapter is not None
        updates = {name: x._replace(a=x.a + seed) for name, x in adapter.updates.items()}
        adapter = type(adapter)(adapter.base, updates, adapter.params, base.params)
        sentence = SentenceVectors("cls", prompts={"query": "q: "})
        folder.mkdir()
        params = {name: x for name, x in adapter.merged(base.params).items() if name in model.params}
        model = model.replace(params=params, adapter=adapter, labels=tuple("abc"[: model.classes]))
        formats.get("peft").write(model.replace(sentence=sentence), folder)


class Runs(Models):
    """Work directories as a conversion writes them, without config.json, which has no digest."""

    skipped = ("config.json",)

    def _write(self, folder: Path, seed: int) -> None:
        from support.conversions import random_model
        from support.vocabularies import VOCABULARY, WORDPIECES

        from bert_jax import tokenization
        from bert_jax.convert import formats
        from bert_jax.models.config import EncoderConfig

        vocabulary = folder.with_suffix(".txt")
        vocabulary.write_text(VOCABULARY + "new\n" * seed)
        sizes: dict[str, Any] = dict(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        config = EncoderConfig(vocab_size=len(WORDPIECES) + 1, max_position_embeddings=16, **sizes)
        model = random_model(config, "sequence_classification")
        params = {name: x + seed for name, x in model.params.items()}
        tokenizer = tokenization.load(vocabulary)
        formats.get("bert_jax").write(model.replace(params=params, tokenizer=tokenizer), folder)


class Best:
    """The description of the best checkpoint of a run."""

    def __init__(self, folder: Path):
        self.file = folder / "best.json"
        self.best: dict[str, Any] = {"step": 40, "metric": "f1", "since_best": 2, "last_step": 60}
        self.best |= {"scores": {"f1": 0.8125, "accuracy": 0.9}, "degenerate": False}

    def try_one(self, rng: random.Random) -> tuple[str, str]:
        """(the corruption, what came of it)."""
        from bert_jax.io import json_files
        from bert_jax.training.evaluators import read_best

        self.file.write_text(json.dumps(json_files.sealed(self.best), indent=2) + "\n")
        kind = damage_file(rng, self.file)
        try:
            found = read_best(self.file.parent)
        except UserError as error:
            return kind, DETECTED if "\n" not in str(error) else f"{WRONG}: a message of several lines"
        return kind, SAME if found == self.best else WRONG


KINDS: dict[str, Any] = {
    "records": Records,
    "checkpoints": Checkpoints,
    "adapters": Adapters,
    "runs": Runs,
    "best": Best,
}


def try_all(kind: str, folder: Path, numbers: range) -> tuple[collections.Counter, list[str]]:
    """({(corruption, outcome): number}, "NUMBER CORRUPTION: what went wrong")."""
    subject = KINDS[kind](folder)
    outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
    wrong = []
    for number in numbers:
        try:
            corruption, outcome = subject.try_one(random.Random(f"{kind} {number}"))
        except Exception as error:
            corruption, outcome = "any", f"{type(error).__name__}: {error!s:.300}"
            traceback.print_exc()
        if outcome not in (SAME, DETECTED):
            wrong.append(f"{number} {corruption}: {outcome}")
            outcome = WRONG
        outcomes[corruption, outcome] += 1
    return outcomes, wrong


def main(kind: str, first: str, last: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outcomes, wrong = try_all(kind, Path(folder), range(int(first), int(last)))
    print(f"| {kind}: corruption | tried | detected | the same data | anything else |\n|---|---|---|---|---|")
    for corruption in sorted({corruption for corruption, _ in outcomes}):
        counts = [outcomes[corruption, outcome] for outcome in (DETECTED, SAME, WRONG)]
        print(f"| {corruption} | {sum(counts)} | {counts[0]} | {counts[1]} | {counts[2]} |")
    print(f"{sum(outcomes.values())} corruptions, {len(wrong)} wrong")
    print("\n".join(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
