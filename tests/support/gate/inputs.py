"""The corpus, the records and the tables of tasks that the recorded runs read."""

import contextlib
import json
import os
import random
from pathlib import Path

from support import recorded

from bert_jax import cli

WORDS = (
    "the of a river stone old bright wind walks under over seven houses and slow green hill letter".split()
)

RECORDS = {
    "packed": ("--eval_fraction=0.2", "--dupe_factor=2"),
    "packed-sop": ("--nsp=sop",),
    "packed-sentences": ("--nsp=none", "--full_sentences"),
    "google": ("--schema=google", "--dupe_factor=2", "--max_predictions_per_seq=8"),
    "google-words": ("--schema=google", "--whole_word_mask", "--dupe_factor=1", "--eval_fraction=0.2"),
}


def run(*arguments):
    """A command of bert-jax in this process."""
    code = cli.main(list(arguments))
    assert code == 0, f"bert-jax {' '.join(arguments)}: exit code {code}"


@contextlib.contextmanager
def inside(folder):
    """With this working directory, so that paths in the files of a run are relative."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write_corpus(folder):
    """Writes text and vocabulary of a corpus into corpus.txt and vocab.txt of a folder."""
    generator = random.Random(0)
    documents = [
        "".join(
            f"{number} {' '.join(generator.choices(WORDS, k=generator.randint(2, 25)))}.\n"
            for _ in range(generator.randint(1, 40))
        )
        for number in range(60)
    ]
    (folder / "corpus.txt").write_text("\n".join(documents))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *WORDS, ".", *(str(number) for number in range(10)), *(f"##{n}" for n in range(10))]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")


def write_records(folder):
    """Writes records of each kind of RECORDS into folders of the kind's name."""
    with inside(folder):
        for kind, flags in RECORDS.items():
            common = "--input=corpus.txt --vocab=vocab.txt --max_seq_length=48 --seed=7 --num_shards=2"
            run("data", *common.split(), f"--output={kind}", "--workers=1", *flags)


def record_digests(folder):
    return {
        f"{kind}/{path}": digest
        for kind in RECORDS
        for path, digest in recorded.tree_digests(folder / kind).items()
        if path.endswith(".tfrecord")
    }


def write_tables(folder):
    """Writes 40 examples of each task into a folder."""
    generator = random.Random(1)

    def text():
        return " ".join(generator.choices(WORDS, k=generator.randint(4, 30)))

    rows = [(text(), text(), "yes" if number % 3 else "no", number % 2) for number in range(40)]
    lines = [f"{a},{b},{label},{right}\n" for a, b, label, right in rows]
    (folder / "table.csv").write_text("text,other,label,right\n" + "".join(lines))
    with open(folder / "words.jsonl", "w") as file:
        for a, *_ in rows:
            words = a.split()
            tags = ["B-RIVER" if word == "river" else "B-HILL" if word == "hill" else "O" for word in words]
            file.write(json.dumps({"words": words, "tags": tags}) + "\n")
    with open(folder / "questions.jsonl", "w") as file:
        for number, (a, *_) in enumerate(rows):
            context = f"{a} river {a}"
            answers = {"text": ["river"], "answer_start": [context.index("river")]}
            row = {"id": str(number), "context": context, "question": "the river", "answers": answers}
            file.write(json.dumps(row) + "\n")
