"""The complete path on the English text that every CPython contains: from text to a fine-tuned task.

The steps run commands as a user would, and print each before it runs. Six packages of the standard library
are held out of pre-training, and the task is made from them: to restore commas and the ends of sentences, as
in transcripts of speech, which needs no labels.
"""

import dataclasses
import random
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from etils import epy

from bert_jax.io import files
from bert_jax.tasks import predictions
from data_pipelines import python_docs

with epy.lazy_imports():
    from bert_jax.inference import held_out
    from bert_jax.training import evaluators

# Packages with several modules that every CPython has; together a fifth of the corpus.
HELD_OUT = ("asyncio", "email", "importlib", "logging", "unittest", "xml")

MASKED = (
    "Return a [MASK] of all files in the directory.",
    "The default [MASK] is None.",
    "Raise an error if the [MASK] does not exist.",
)

_NO_MARK = "O"
_TAGS = {",": "B-COMMA", ".": "B-PERIOD", "?": "B-PERIOD", "!": "B-PERIOD"}
_AROUND = "()[]\"'`*"
_SENTENCES = 3  # of a text of the task
_WORDS = range(12, 61)  # number of words of such a text

Text = list[tuple[str, str]]  # words and their tags


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much the demo computes. The default takes less than four minutes on two CPU cores."""

    vocabulary: int = 4000
    pretrain_flags: tuple[str, ...] = ()  # in addition to the config pretrain/demo
    train_examples: int = 200
    epochs: int = 10


QUICK = Budget(
    vocabulary=1000,
    pretrain_flags=("--config.steps=30", "--config.eval.batches=2"),
    train_examples=40,
    epochs=1,
)


class Stopped(Exception):
    """A command failed with this exit code, and has already printed why."""


class Demo:
    """The steps of the demo; each reads earlier results, and its docstring is printed as a title.

    `run_command` runs `bert-jax` with the given arguments and returns its exit code.
    """

    def __init__(self, directory: str, run_command: Callable[[Sequence[str]], int], budget: Budget):
        self.root, self.run_command, self.budget = Path(directory), run_command, budget

    def run(self) -> None:
        """Runs every step; results of an earlier run are kept. Raises Stopped if a command fails."""
        began = time.monotonic()
        steps = (self.write_corpus, self.make_vocabulary, self.make_records, self.pretrain, self.fill_masks)
        for number, step in enumerate((*steps, self.finetune), 1):
            print(f"\n{number}. {step.__doc__}")
            step()
        seconds = int(time.monotonic() - began)
        print(f"\nDone in {seconds // 60} min {seconds % 60} s. Everything is in {self.root}/.")
        if self.budget == QUICK:
            print(
                "--quick takes too few steps to learn anything, so its results mean nothing; run "
                "`bert-jax demo` for meaningful ones."
            )

    def write_corpus(self) -> None:
        """Text: documentation and docstrings of this Python"""
        if self._dev.exists():
            print(f"{self.root}/corpus and {self.root}/task exist already")
            return
        documents = python_docs.documents()
        reserved = [document for document in documents if document.package in HELD_OUT]
        corpus = [document for document in documents if document.package not in HELD_OUT]
        paths = python_docs.write_corpus(self.root / "corpus", corpus)
        sentences = [sentence for document in corpus for sentence in document.sentences]
        words = sum(len(sentence.split()) for sentence in sentences)
        print(f"{len(corpus)} documents, {len(sentences):,} sentences, {words:,} words in {', '.join(paths)}")
        train, dev = make_task(reserved, self.budget.train_examples)
        write_task(self.root / "task" / "train.jsonl", train)
        write_task(self._dev, dev)
        print(
            f"held out of pre-training: {', '.join(HELD_OUT)}; {len(train):,} of their texts of three "
            f"sentences are the training data of the task, {len(dev):,} its test data"
        )

    def make_vocabulary(self) -> None:
        """Vocabulary: WordPiece, learned from that text"""
        path = self.root / "vocab.txt"
        if path.exists():
            print(f"{path} exists already")
            return
        self._command(
            "vocab", f"--input={self.root}/corpus", f"--output={path}", f"--size={self.budget.vocabulary}"
        )

    def make_records(self) -> None:
        """Records: rows of 64 tokens"""
        self._command(
            "data",
            f"--input={self.root}/corpus",
            f"--vocab={self.root}/vocab.txt",
            f"--output={self.root}/records",
            "--nsp=none",
            "--full_rows",
            "--max_seq_length=64",
            "--eval_fraction=0.05",
        )

    def pretrain(self) -> None:
        """Pre-training: masked words"""
        self._command(
            "pretrain",
            "--config=pretrain/demo",
            f"--workdir={self.root}/pretrain",
            f"--config.data.dir={self.root}/records",
            *self.budget.pretrain_flags,
        )
        found = held_out.held_out(
            str(self.root / "pretrain"), str(self.root / "records"), log=lambda line: None
        )
        print(
            f"\nloss of {found['predicted_tokens']:,} masked tokens of held-out text: "
            f"{found['mlm_loss']:.2f} nats; {found['unigram']:.2f} for a guess by the frequency of words"
        )
        self._command("plot", f"--workdir={self.root}/pretrain", f"--output={self.root}/curves.png")

    def fill_masks(self) -> None:
        """Masked words: predictions for [MASK]"""
        self._command("fill-mask", f"--model={self.root}/pretrain", *MASKED)

    def finetune(self) -> None:
        """Fine-tuning: where commas and periods belong, with and without the pre-trained weights"""
        scores = {}
        for name, extra in (("pretrained", []), ("scratch", ["--config.from_scratch=true"])):
            workdir = self.root / f"finetune-{name}"
            self._command(
                "finetune",
                "--config=finetune/tagging",
                f"--workdir={workdir}",
                f"--config.init_from={self.root}/pretrain",
                f"--config.data.train={self.root}/task/train.jsonl",
                f"--config.data.eval={self._dev}",
                "--config.max_seq_length=128",
                f"--config.epochs={self.budget.epochs}",
                "--config.optimizer.learning_rate=3e-4",
                *extra,
            )
            best = evaluators.read_best(workdir)
            scores[name] = best["scores"]["f1"] if best else 0.0
        print(
            f"\nbest F1 of the commas and periods: {scores['pretrained']:.3f} with pre-training, "
            f"{scores['scratch']:.3f} with the same model from random weights"
        )

    @property
    def _dev(self) -> Path:
        return self.root / "task" / "dev.jsonl"  # the last file of the text to be written

    def _command(self, *arguments: str) -> None:
        print("$ " + shlex.join(["bert-jax", *arguments]))
        code = self.run_command(arguments)
        if code:
            raise Stopped(code)


def punctuation(text: str) -> Text:
    """Returns the words of a text in lower case without punctuation, each with the tag of the mark after it.

    Case and other marks around words are dropped: they would give the ends of sentences away.
    """
    words: list[tuple[str, str]] = []
    for written in text.split():
        word = written.strip(_AROUND)
        bare = word.rstrip(",.:;?!" + _AROUND).lower()
        mark = next((_TAGS[each] for each in word[len(bare) :] if each in _TAGS), _NO_MARK)
        if bare:
            words.append((bare, mark))
        elif words and mark != _NO_MARK:
            words[-1] = words[-1][0], mark
    return words


def make_task(documents: Sequence, train_examples: int) -> tuple[list[Text], list[Text]]:
    """Returns shuffled (train, dev) texts of three consecutive sentences of documents, see `punctuation`."""
    texts = [
        punctuation(" ".join(document.sentences[start : start + _SENTENCES]))
        for document in documents
        for start in range(0, len(document.sentences) - _SENTENCES + 1, _SENTENCES)
    ]
    texts = [text for text in texts if len(text) in _WORDS]
    random.Random(0).shuffle(texts)
    return texts[:train_examples], texts[train_examples:]


def write_task(path: Path, texts: Sequence[Text]) -> None:
    """Writes texts to a JSON lines file of `finetune/tagging`, atomically."""
    files.make_directory(path.parent)
    rows = ({"words": [word for word, _ in text], "tags": [tag for _, tag in text]} for text in texts)
    predictions.write_json_lines(str(path), rows)
