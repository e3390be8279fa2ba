"""Inputs that are wrong in a way that a number determines, and what reads them.

`python tests/support/fuzzing.py FIRST LAST` tries inputs and prints a table of what came of them.
"""

from __future__ import annotations

import collections
import contextlib
import io
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
from support import google_records, processes
from support.conversions import random_model
from support.limits import limits
from support.mutations import COMPRESS, UNITS, json_bytes, mutate_bytes, mutate_json

from bert_jax import tasks, tokenization
from bert_jax.convert import loading, model_card
from bert_jax.convert.families import bert
from bert_jax.convert.formats import huggingface_export, tensorflow1, work_directory
from bert_jax.data import inspection, records
from bert_jax.errors import UserError
from bert_jax.inference import text_files
from bert_jax.models import config as bert_config
from bert_jax.runs import grid
from bert_jax.settings import config_fields, defaults
from bert_jax.settings.pretrain_config import PretrainConfig
from bert_jax.tasks import fields as task_fields
from bert_jax.tasks.question_answering.question_files import read_questions
from bert_jax.tasks.table import Columns, infer_labels, parse_number, read_examples
from bert_jax.tasks.tagging.word_files import read_sentences
from bert_jax.tokenization.huggingface import read_tokenizer
from bert_jax.training import evaluators, metrics
from bert_jax.workdir import run_directory
from data_pipelines import readers, sentences


class Inputs:
    """Sound inputs to start from, made once, and one function per kind of input that breaks and reads one.

    Args:
        folder: For the sound inputs, and those made of them, one at a time.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.case = folder / "case"
        self.sound = folder / "sound"
        self.sound.mkdir(parents=True)
        words = [f"w{number}" for number in range(40)]
        vocabulary = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *words, "##s"]
        (self.sound / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
        sizes = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20)
        config = bert_config.EncoderConfig(vocab_size=len(vocabulary), max_position_embeddings=16, **sizes)
        tokenizer = tokenization.load(self.sound / "vocab.txt")
        model = random_model(config, "sequence_classification", tokenizer=tokenizer, labels=("a", "b"))
        for name, most in (("huggingface", 1 << 30), ("shards", 4000)):
            (self.sound / name).mkdir()
            huggingface_export.write(model, self.sound / name, max_shard_bytes=most)
        processes.write_records(self.sound / "packed", rows=40, eval_rows=8)
        google_records.write(
            self.sound / "google" / "a.tfrecord", [google_records.example() for _ in range(20)]
        )
        google_records.write_vocabulary(self.sound / "google" / "vocab.txt")
        run = {
            "command": "finetune",
            "config": {"model": config.to_dict(), "seed": 1},
            "vocabulary": tokenizer.settings(),
            "labels": ["a", "b"],
            "head": "sequence_classification",
        }
        (self.sound / "run").mkdir()
        (self.sound / "run" / "config.json").write_text(json.dumps(run))
        shutil.copy(self.sound / "vocab.txt", self.sound / "run")
        best = {"step": 1, "last_step": 2, "since_best": 0, "metric": "accuracy", "scores": {"accuracy": 0.5}}
        summary = [{"setting": "s", "scores": {"accuracy": {"median": 0.5, "best": 1.0}}, "seeds": 1}]
        self.results = {"best.json": best, "summary.json": summary}
        self.configs = {
            "pretrain": defaults.pretrain("tiny").to_dict(),
            "finetune": tasks.default_config("tiny").to_dict(),
        }
        self.bert_config = bert.FAMILY.tensorflow_fields(bert.FAMILY.tensorflow, config)

    def kinds(self) -> dict[str, Callable[[random.Random], None]]:
        """{kind of input: makes one and reads it}."""
        return {
            "corpora": self.corpus,
            "task tables": self.table,
            "questions": self.questions,
            "tagged sentences": self.tags,
            "texts to embed": self.texts,
            "Hugging Face folders": self.huggingface,
            "TF1 configurations": self.tensorflow1,
            "work directories": self.run,
            "vocabularies": self.vocabulary,
            "packed records": self.packed,
            "google records": self.google,
            "manifests": self.manifest,
            "configuration values": self.config,
        }

    def try_input(self, number: int) -> tuple[str, str]:
        """Makes the input of a number and reads it.

        Returns:
            Its kind, and "read", "refused" (a UserError of one line), or what went wrong.
        """
        rng = random.Random(number)
        kinds = list(self.kinds().items())
        kind, read = kinds[number % len(kinds)]
        shutil.rmtree(self.case, ignore_errors=True)
        self.case.mkdir()
        try:
            with limits(), contextlib.redirect_stdout(io.StringIO()):
                read(rng)
        except UserError as error:
            line = str(error)
            return (
                kind,
                "refused" if line and "\n" not in line else f"a message of several lines: {line!r:.300}",
            )
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [f for f in frames if "bert_jax/" in f.filename or "data_pipelines/" in f.filename]
            where = (own or frames)[-1]
            return kind, f"{type(error).__name__}: {error!s:.200} ({where.filename}:{where.lineno})"
        return kind, "read"

    def _write(self, name: str, data: bytes) -> str:
        path = self.case / name
        path.write_bytes(data)
        return str(path)

    def _text(self, rng: random.Random, base: bytes) -> tuple[str, bytes]:
        """A suffix and the content of a text file with something wrong in it, perhaps compressed."""
        kind = rng.randrange(4)
        if kind == 0:
            data = rng.randbytes(rng.randrange(3000))
        elif kind == 1:
            data = b"".join(rng.choices(UNITS, k=rng.randrange(100)))
        else:
            data = mutate_bytes(rng, base)
        suffix = rng.choice(["", "", *COMPRESS])
        data = COMPRESS[suffix](data)
        return suffix, mutate_bytes(rng, data) if suffix and rng.random() < 0.5 else data

    def corpus(self, rng: random.Random) -> None:
        format = rng.choice(list(readers.FORMATS))
        base = {
            "jsonl": b'{"text": "One sentence. Two.\\nAnother paragraph."}\n' * 5,
            "wikiextractor": b'<doc id="1" url="u" title="T">\nT\n\nOne sentence. Two.\n</doc>\n' * 5,
            "wikipedia_xml": b"<mediawiki><page><title>T</title><ns>0</ns><id>1</id><revision><text>"
            b"[[link|word]] and {{template|a}}.\n\nTwo &lt;ref&gt;x&lt;/ref&gt;.</text></page></mediawiki>\n"
            * 5,
            "books": b"*** START OF THIS PROJECT GUTENBERG\n\nCONTENTS\n\nI. One   3\n\nIt was.\nTwo.\n\n"
            * 5,
        }.get(format, b"One sentence.\nTwo.\n\nAnother document.\n" * 5)
        suffix, data = self._text(rng, base)
        path = self._write(f"corpus.txt{suffix}", data)
        for range_ in readers.split_ranges([path], max(1, len(data) // rng.choice([1, 3])), format):
            for document in readers.read_documents(range_, format):
                assert document.passages and all(passage.strip() for passage in document.passages)
                for sentence in sentences.split(document):
                    sentence.encode()

    def table(self, rng: random.Random) -> None:
        format = rng.choice(["tsv", "csv", "jsonl"])
        if format == "jsonl":
            rows = [{"a": f"text {i}", "b": "other", "y": i % 2, "id": i} for i in range(30)]
            base = "".join(json.dumps(row) + "\n" for row in rows).encode()
            if rng.random() < 0.5:
                base = b"".join(json_bytes(rng, row) + b"\n" for row in rows[:5]) + base
        else:
            comma = {"tsv": "\t", "csv": ","}[format]
            rows = [("a", "b", "y", "id"), *((f'"text {i}"', "other", str(i % 2), str(i)) for i in range(30))]
            base = "".join(comma.join(row) + "\n" for row in rows).encode()
        suffix, data = self._text(rng, base)
        columns = Columns(*rng.choice([("a", "b", "y", "id"), ("a", "", "y"), ("0",), ("1" * 5000,)]))
        parse = rng.choice([str, parse_number, None])
        quoting = rng.choice(["auto", "none", "csv"])
        path = self._write(f"rows.{format}{suffix}", data)
        examples = read_examples(path, columns, parse_label=parse, quoting=quoting)
        if examples.labels and parse is str:
            infer_labels(examples.labels, path)
        "".join(examples.texts_a).encode()

    def questions(self, rng: random.Random) -> None:
        item = {"question": "Which?", "id": "1", "answers": [{"text": "word", "answer_start": 4}]}
        if rng.random() < 0.5:
            content = {"data": [{"paragraphs": [{"context": "The word here.", "qas": [item] * 2}]}]}
            base, name = json_bytes(rng, content), "q.json"
        else:
            rows = [item | {"context": "The word here.", "id": str(i)} for i in range(10)]
            base, name = b"".join(json_bytes(rng, row) + b"\n" for row in rows), "q.jsonl"
        suffix, data = ("", base) if rng.random() < 0.6 else self._text(rng, base)
        read_questions(
            self._write(name + suffix, data),
            v2=rng.random() < 0.5,
            labeled=rng.random() < 0.8,
            training=rng.random() < 0.5,
        )

    def tags(self, rng: random.Random) -> None:
        if rng.random() < 0.5:
            base, name = b"-DOCSTART- O\n\nEU B-ORG\nrejects O\n\nHe O\n\n" * 5, "t.conll"
        else:
            row = {"words": ["EU", "rejects"], "tags": ["B-ORG", "O"], "document": 1, "id": "x"}
            base, name = b"".join(json_bytes(rng, row) + b"\n" for _ in range(10)), "t.jsonl"
        suffix, data = self._text(rng, base)
        read_sentences(self._write(name + suffix, data), id=rng.choice(["", "id"]), tagged=rng.random() < 0.8)

    def texts(self, rng: random.Random) -> None:
        name = rng.choice(["t.txt", "t.jsonl", "t.tsv"])
        base = {
            "t.txt": b"One text.\nTwo.\n" * 5,
            "t.tsv": b"One\tTwo\n" * 5,
            "t.jsonl": b'{"text": "One"}\n' * 5,
        }[name]
        suffix, data = self._text(rng, base)
        for text in text_files.Texts(self._write(name + suffix, data), pairs=name == "t.tsv"):
            "".join(text).encode()

    def _folder(self, name: str) -> Path:
        folder = self.case / "folder"
        shutil.copytree(self.sound / name, folder)
        return folder

    def _change_file(self, rng: random.Random, folder: Path, but: str = "") -> None:
        """Changes, truncates, removes or exchanges files of a folder."""
        names = sorted(file.name for file in folder.iterdir() if file.name != but)
        for _ in range(rng.choice([1, 1, 2])):
            file = folder / rng.choice(names)
            if not file.exists():
                continue
            kind = rng.randrange(10)
            if file.suffix == ".json" and kind < 7:
                with contextlib.suppress(ValueError, RecursionError):
                    file.write_bytes(json_bytes(rng, json.loads(file.read_bytes())))
            elif kind < 8:
                file.write_bytes(mutate_bytes(rng, file.read_bytes()))
            elif kind == 8:
                file.unlink()
            else:
                content = (self.sound / "huggingface" / "config.json").read_bytes()
                other = folder / rng.choice(names)
                file.write_bytes(other.read_bytes() if other.exists() else content)

    def huggingface(self, rng: random.Random) -> None:
        folder = self._folder(rng.choice(["huggingface", "huggingface", "shards"]))
        if rng.random() < 0.3:
            (folder / "vocab.txt").unlink(missing_ok=True)
            content = {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [{"type": "BertNormalizer", "lowercase": True}],
                },
                "model": {"type": "WordPiece", "vocab": {token: i for i, token in enumerate(self._tokens())}},
                "added_tokens": [{"id": 0, "content": "[PAD]"}],
            }
            (folder / "tokenizer.json").write_text(json.dumps(content))
        if rng.random() < 0.5:
            fields = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_bytes(json_bytes(rng, fields))
        else:
            self._change_file(rng, folder)
        loading.detect(folder)
        loading.load(folder, log=lambda line: None)
        read_tokenizer(folder)

    def _tokens(self) -> list[str]:
        return (self.sound / "vocab.txt").read_text().split()

    def tensorflow1(self, rng: random.Random) -> None:
        folder = self.case / "tf"
        folder.mkdir()
        (folder / "bert_config.json").write_bytes(json_bytes(rng, self.bert_config))
        tensorflow1.FORMAT.read_config(folder)

    def run(self, rng: random.Random) -> None:
        folder = self._folder("run")
        for name, content in self.results.items():
            (folder / name).write_bytes(
                json_bytes(rng, content) if rng.random() < 0.5 else json.dumps(content).encode()
            )
        if rng.random() < 0.6:
            self._change_file(rng, folder)
        lines = [{"kind": "eval", "step": step, "accuracy": 0.5} for step in range(3)]
        (folder / "metrics.jsonl").write_bytes(b"".join(json_bytes(rng, line) + b"\n" for line in lines))
        if rng.random() < 0.5:
            (folder / "best.json").unlink(missing_ok=True)
        for read in (
            lambda: metrics.read_metrics(folder),
            lambda: work_directory.FORMAT.read_config(folder),
            lambda: evaluators.read_best(folder),
            lambda: grid.read_summary(str(folder)),
            lambda: model_card._scores(folder),
            lambda: run_directory.load_tokenizer(folder),
        ):
            with contextlib.suppress(UserError):
                read()
        loading.detect(folder)
        run_directory.read_run(folder)

    def vocabulary(self, rng: random.Random) -> None:
        name = rng.choice(["vocab.txt", "vocab.txt", "spiece.model"])
        base = (self.sound / "vocab.txt").read_bytes()
        data = mutate_bytes(rng, base) if rng.random() < 0.8 else rng.randbytes(rng.randrange(500))
        tokenizer = tokenization.load(self._write(name, data))
        tokenizer.encode_batch(["w1 w2s [MASK] \ud800 é" if rng.random() < 0.1 else "w1 w2s unknown é"])

    def _read_records(self, folder: Path, vocab: str = "") -> None:
        for split in ("train", "eval"):
            with contextlib.suppress(UserError):
                dataset = records.open_dataset(str(folder), split, vocab)
                for row in range(len(dataset)):
                    with contextlib.suppress(UserError):
                        dataset.batch(np.array([row]))
        inspection.inspect_records(str(folder), vocab)
        for file in sorted(folder.glob("*.tfrecord"))[:1]:
            inspection.inspect_records(str(file))
        records.open_dataset(str(folder), "train", vocab)

    def packed(self, rng: random.Random) -> None:
        folder = self._folder("packed")
        self._change_file(rng, folder, but="manifest.json")
        self._read_records(folder)

    def google(self, rng: random.Random) -> None:
        folder = self._folder("google")
        vocab = str(folder / "vocab.txt") if rng.random() < 0.7 else ""
        if rng.random() < 0.6:
            values = {
                name: rng.choice([None, [0], [1] * 12, [-1] * 12, [10**10] * 3, []])
                for name in rng.sample(_NAMES, 1)
            }
            examples = [google_records.example() for _ in range(5)] + [google_records.example(**values)]
            google_records.write(folder / "a.tfrecord", examples)
        else:
            self._change_file(rng, folder)
        self._read_records(folder, vocab)

    def manifest(self, rng: random.Random) -> None:
        folder = self._folder("packed")
        content = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_bytes(json_bytes(rng, content))
        self._read_records(folder)

    def config(self, rng: random.Random) -> None:
        name = rng.choice(list(self.configs))
        config = mutate_json(rng, self.configs[name])
        with contextlib.suppress(UserError):
            model = config.get("model") if isinstance(config, dict) else None
            if isinstance(model, dict):
                bert_config.from_dict(model)
        leaves = dict(_flatten(config))
        declared = task_fields.declared() | dict(config_fields.fields(PretrainConfig()))
        for name, value in leaves.items():
            if name in declared:
                config_fields.check(name, value, declared[name])


_NAMES = [
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    "next_sentence_labels",
]


def _flatten(tree: Any, prefix: str = ""):
    for name, value in tree.items() if isinstance(tree, dict) else ():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def try_all(folder: Path, numbers: range) -> tuple[collections.Counter, list[str]]:
    """({(kind, outcome): inputs}, "NUMBER KIND: what went wrong")."""
    inputs = Inputs(folder)
    outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
    wrong = []
    for number in numbers:
        kind, outcome = inputs.try_input(number)
        if outcome not in ("read", "refused"):
            wrong.append(f"{number} {kind}: {outcome}")
            outcome = "wrong"
        outcomes[kind, outcome] += 1
    return outcomes, wrong


def main(first: str, last: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outcomes, wrong = try_all(Path(folder) / "fuzz", range(int(first), int(last)))
    print("| input | tried | read | refused in one line | anything else |\n|---|---|---|---|---|")
    for kind in dict.fromkeys(kind for kind, _ in outcomes):
        counts = [outcomes[kind, outcome] for outcome in ("read", "refused", "wrong")]
        print(f"| {kind} | {sum(counts)} | {counts[0]} | {counts[1]} | {counts[2]} |")
    print(f"{sum(outcomes.values())} inputs, {len(wrong)} wrong")
    print("\n".join(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
