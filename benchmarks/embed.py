"""`bert-jax embed` beside sentence-transformers, in turn, on sentences of a corpus; prints a markdown table.

    python benchmarks/embed.py --input='wiki/*' --input_format=wikiextractor --model=DIR --peer_python=PYTHON

Both read the same file of one sentence a line with the same model (a sentence-transformers folder with mean
pooling and normalized vectors) and write .npy; sentences and their order are drawn by a fixed seed. Times are
of whole processes and, as each reports it, of the texts alone, in float32 on the CPU. A first run of
`bert-jax embed`, which fills its cache of compiled programs, is reported by itself.
"""

from __future__ import annotations

import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app, flags

from data_pipelines import readers, sentences

FLAGS = flags.FLAGS
flags.DEFINE_string("input", None, "The corpus.", required=True)
flags.DEFINE_string("input_format", "wikiextractor", "As in bert-jax data.")
flags.DEFINE_string("model", None, "A sentence-transformers folder.", required=True)
flags.DEFINE_string("peer_python", sys.executable, "A Python with sentence-transformers.")
flags.DEFINE_string("bert_jax", ".venv/bin/bert-jax", "The command to measure.")
flags.DEFINE_integer("texts", 5000, "Sentences.")
flags.DEFINE_integer("pairs", 3, "Runs of each.")
flags.DEFINE_integer("max_seq_length", 256, "Tokens of a text at most, for both.")

_PEER = """
import sys, time
import numpy as np
from sentence_transformers import SentenceTransformer
model, texts, output, length = sys.argv[1:]
model = SentenceTransformer(model, device="cpu")
model.max_seq_length = int(length)
lines = open(texts, encoding="utf-8").read().split("\\n")[:-1]
began = time.monotonic()
vectors = model.encode(lines, normalize_embeddings=True)
print("seconds", time.monotonic() - began)
np.save(output, vectors)
"""


def write_sentences(path: str) -> None:
    drawn: list[str] = []
    for part in readers.split_ranges(readers.list_inputs(FLAGS.input), 1 << 40, FLAGS.input_format):
        for document in readers.read_documents(part, FLAGS.input_format):
            drawn += sentences.split(document)
        if len(drawn) >= 20 * FLAGS.texts:
            break
    chosen = random.Random(0).sample(drawn, FLAGS.texts)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in chosen)


def timed(command: list[str], pattern: str, **environment: str) -> tuple[float, float]:
    """(seconds of the process, seconds of the texts as it reports them)."""
    began = time.monotonic()
    done = subprocess.run(
        command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return time.monotonic() - began, float(re.search(pattern, done.stdout)[1])


def main(_) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        texts, mine, theirs = (os.path.join(scratch, name) for name in ("texts.txt", "a.npy", "b.npy"))
        write_sentences(texts)

        def ours():
            command = [FLAGS.bert_jax, "embed", f"--checkpoint={FLAGS.model}", f"--input={texts}"]
            command += [f"--output={mine}", "--overwrite", "--normalize"]
            command += [f"--max_seq_length={FLAGS.max_seq_length}"]
            cache = os.path.join(scratch, "xla")
            return timed(command, r"; ([\d.]+) s,", JAX_PLATFORMS="cpu", JAX_COMPILATION_CACHE_DIR=cache)

        def peer():
            command = [FLAGS.peer_python, "-c", _PEER, FLAGS.model, texts, theirs, str(FLAGS.max_seq_length)]
            return timed(command, r"seconds ([\d.]+)")

        runs = {"first run of bert-jax embed": [ours()], "sentence-transformers": [], "bert-jax embed": []}
        for _ in range(FLAGS.pairs):
            runs["sentence-transformers"].append(peer())
            runs["bert-jax embed"].append(ours())
            print(*runs["sentence-transformers"][-1], *runs["bert-jax embed"][-1], file=sys.stderr)
        difference = np.abs(np.load(mine) - np.load(theirs)).max()

    def row(times):
        return ", ".join(f"{FLAGS.texts / seconds:,.0f}" for seconds in times)

    print("| what | texts/s, run by run | median | texts/s of the whole process |")
    print("|---|---|---|---|")
    for name, values in runs.items():
        whole, inner = zip(*values, strict=True)
        median = FLAGS.texts / statistics.median(inner)
        print(f"| {name} | {row(inner)} | {median:,.0f} | {row(whole)} |")
    pairs = zip(runs["sentence-transformers"], runs["bert-jax embed"], strict=True)
    print("\nPair by pair: " + ", ".join(f"{b[1] / a[1]:.2f}" for b, a in pairs), end=" times the texts/s; ")
    print(f"largest difference between two vectors' numbers: {difference:.1e}.")


if __name__ == "__main__":
    app.run(main)
