"""The complete path on the English text that every CPython contains: from text to a fine-tuned task.

The steps run commands as a user would, and print each before it runs. Six packages of the standard library
are held out of pre-training, and the task is made from them: to restore commas and the ends of sentences, as
in transcripts of speech, which needs no labels.
"""

import itertools
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


class Stopped(Exception):
    """A command failed with this exit code, and has already printed why."""


def run(directory: str, run_command: Callable[[Sequence[str]], int], quick: bool = False) -> None:
    """Runs every step; results of an earlier run are kept.

    `run_command` runs `bert-jax` with some arguments and returns its exit code. The steps take less than four
    minutes on two CPU cores; `quick` ones take a minute and learn nothing. Raises Stopped if a command fails.
    """
    root, began, numbers = Path(directory), time.monotonic(), itertools.count(1)

    def begin(title: str) -> None:
        print(f"\n{next(numbers)}. {title}")

    def command(*arguments: str) -> None:
        print("$ " + shlex.join(["bert-jax", *arguments]))
        if code := run_command(arguments):
            raise Stopped(code)

    corpus, task, vocabulary, records = (root / x for x in ("corpus", "task", "vocab.txt", "records"))
    begin("Text: documentation and docstrings of this Python")
    if (task / "dev.jsonl").exists():  # the last file of the text to be written
        print(f"{corpus} and {task} exist already")
    else:
        write_texts(corpus, task, 40 if quick else 200)

    begin("Vocabulary: WordPiece, learned from that text")
    if vocabulary.exists():
        print(f"{vocabulary} exists already")
    else:
        size = 1000 if quick else 4000
        command("vocab", f"--input={corpus}", f"--output={vocabulary}", f"--size={size}")

    begin("Records: rows of 64 tokens")
    layout = ("--nsp=none", "--full_rows", "--max_seq_length=64", "--eval_fraction=0.05")
    command("data", f"--input={corpus}", f"--vocab={vocabulary}", f"--output={records}", *layout)

    begin("Pre-training: masked words")
    pretrained = root / "pretrain"
    more = ("--config.steps=30", "--config.eval.batches=2") if quick else ()
    data = f"--config.data.dir={records}"
    command("pretrain", "--config=pretrain/demo", f"--workdir={pretrained}", data, *more)
    found = held_out.held_out(str(pretrained), str(records), log=lambda line: None)
    print(
        f"\nloss of {found['predicted_tokens']:,} masked tokens of held-out text: "
        f"{found['mlm_loss']:.2f} nats; {found['unigram']:.2f} for a guess by the frequency of words"
    )
    command("plot", f"--workdir={pretrained}", f"--output={root}/curves.png")

    begin("Masked words: predictions for [MASK]")
    command("fill-mask", f"--model={pretrained}", *MASKED)

    begin("Fine-tuning: where commas and periods belong, with and without the pre-trained weights")
    scores = []
    for name in ("pretrained", "scratch"):
        workdir = root / f"finetune-{name}"
        command(
            "finetune",
            "--config=finetune/tagging",
            f"--workdir={workdir}",
            f"--config.init_from={pretrained}",
            f"--config.data.train={task}/train.jsonl",
            f"--config.data.eval={task}/dev.jsonl",
            "--config.max_seq_length=128",
            f"--config.epochs={1 if quick else 10}",
            "--config.optimizer.learning_rate=3e-4",
            *(["--config.from_scratch=true"] if name == "scratch" else []),
        )
        best = evaluators.read_best(workdir)
        scores.append(best["scores"]["f1"] if best else 0.0)
    print(
        f"\nbest F1 of the commas and periods: {scores[0]:.3f} with pre-training, {scores[1]:.3f} with the "
        "same model from random weights"
    )
    seconds = int(time.monotonic() - began)
    print(f"\nDone in {seconds // 60} min {seconds % 60} s. Everything is in {root}/.")
    if quick:
        print("These few steps learn nothing; `bert-jax demo` gives meaningful results.")


def write_texts(corpus: Path, task: Path, train_examples: int) -> None:
    """Writes the corpus, and the training and test data of the task, which are held out of the corpus."""
    documents = python_docs.documents()
    reserved = [document for document in documents if document.package in HELD_OUT]
    documents = [document for document in documents if document.package not in HELD_OUT]
    paths = python_docs.write_corpus(corpus, documents)
    sentences = [sentence for document in documents for sentence in document.sentences]
    words = sum(len(sentence.split()) for sentence in sentences)
    print(f"{len(documents)} documents, {len(sentences):,} sentences, {words:,} words in {', '.join(paths)}")
    train, dev = make_task(reserved, train_examples)
    write_task(task / "train.jsonl", train)
    write_task(task / "dev.jsonl", dev)
    held = ", ".join(HELD_OUT)
    print(f"held out for the task: {held}; {len(train):,} training and {len(dev):,} test texts")


def punctuation(text: str) -> Text:
    """Returns the words of a text in lower case without marks, each with the tag of the mark after it."""
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
