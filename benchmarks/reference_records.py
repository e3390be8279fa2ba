"""bert_jax's records beside google-research/bert's way and the bare tokenizers library, on the same text.

    python benchmarks/reference_records.py --input='corpus/*' --vocab=vocab.txt [--dupe_factor=10]

The text has a sentence a line and a blank line after each document. In turn, each as one process on one core:

- `encode_batch`: the Rust tokenizers library over the lines, and nothing else;
- `reference`: google-research/bert's algorithm in pure Python with its own tokenizer, which stands in for
  create_pretraining_data.py where there is no TensorFlow: its protocol buffers would only make it slower;
- `google`: `bert-jax data --schema=google`, the same masked instances;
- `packed`: `bert-jax data`, unmasked rows, which need no dupe_factor.

Prints a markdown table of seconds and of MB of text a second.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tokenizers
from absl import app, flags

from bert_jax import tokenization
from bert_jax.data import google, tfrecord
from data_pipelines import pairs, readers, static

FLAGS = flags.FLAGS
flags.DEFINE_string("input", None, "Text files: a sentence a line, a blank line after a document.")
flags.DEFINE_string("vocab", None, "A WordPiece vocabulary, uncased.")
flags.DEFINE_integer("dupe_factor", 10, "Of the masked instances.")
flags.DEFINE_integer("pairs", 3, "Times that each is run.")

ROOT = Path(__file__).resolve().parents[1]
LENGTH, PREDICTIONS, PROB, SHORT, SEED = 128, 20, 0.15, 0.1, 12345


def lines_of(paths: list[str]) -> list[str]:
    return [line.strip() for path in paths for line in Path(path).read_text(encoding="utf-8").split("\n")]


def encode_batch(paths: list[str], output: str) -> None:
    rust = tokenizers.BertWordPieceTokenizer(FLAGS.vocab, lowercase=True)
    lines = [line for line in lines_of(paths) if line]
    for start in range(0, len(lines), 2000):
        rust.encode_batch(lines[start : start + 2000])


def reference(paths: list[str], output: str) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "tokenization"))
    import wordpiece_oracle

    vocabulary = tokenization.load(FLAGS.vocab)
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    documents: list[list[list[int]]] = [[]]
    for line in lines_of(paths):
        if not line:
            documents.append([])
        elif tokens := wordpiece_oracle.tokenize(line, ids):
            documents[-1].append([ids[token] for token in tokens])
    documents = [document for document in documents if document]
    rng = random.Random(SEED)
    rng.shuffle(documents)
    settings = dict(
        masked_lm_prob=PROB, max_predictions_per_seq=PREDICTIONS, whole_word_mask=False, max_ngram=0
    )
    mask = static.Masker(vocabulary, settings, rng)
    encode = google.Encoder(vocabulary.vocab_size, LENGTH, PREDICTIONS)
    instances = []
    for pair in pairs.make_pairs(documents, LENGTH, rng, SHORT, FLAGS.dupe_factor):
        masked = mask([vocabulary.cls_id, *pair.first, vocabulary.sep_id, *pair.second, vocabulary.sep_id])
        instances.append((masked.ids, len(pair.first) + 2, masked.positions, masked.labels, pair.label))
    rng.shuffle(instances)
    tfrecord.write_records(os.path.join(output, "reference.tfrecord"), (encode(*one) for one in instances))


def ours(schema: str):
    def run(paths: list[str], output: str) -> None:
        command = [sys.executable, "-m", "bert_jax", "data", f"--input={FLAGS.input}", "--workers=1"]
        command += [f"--vocab={FLAGS.vocab}", f"--output_dir={output}/records", f"--schema={schema}"]
        command += [f"--dupe_factor={FLAGS.dupe_factor}"] if schema == "google" else []
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)

    return run


def main(_) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    paths = readers.list_inputs(FLAGS.input)
    megabytes = sum(map(os.path.getsize, paths)) / 1e6
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    ways = {
        "encode_batch": encode_batch,
        "reference": reference,
        "google": ours("google"),
        "packed": ours("packed"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(FLAGS.pairs):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as output:
                begun = time.monotonic()
                way(paths, output)
                seconds[name].append(time.monotonic() - begun)
    print(f"{megabytes:.1f} MB of text, one core, dupe_factor {FLAGS.dupe_factor}\n")
    print("| | seconds | MB/s, best | times encode_batch's speed, run by run | times the reference's |")
    print("|---|---|---|---|---|")
    for name, times in seconds.items():
        bare = ", ".join(f"{b / t:.2f}" for b, t in zip(seconds["encode_batch"], times, strict=True))
        slow = ", ".join(f"{r / t:.1f}" for r, t in zip(seconds["reference"], times, strict=True))
        told = ", ".join(f"{t:.1f}" for t in times)
        print(f"| {name} | {told} | {megabytes / min(times):.2f} | {bare} | {slow} |")


if __name__ == "__main__":
    flags.mark_flags_as_required(["input", "vocab"])
    app.run(main)
