"""`bert-jax embed` beside sentence-transformers and ONNX Runtime, in turn; prints a markdown table.

    python benchmarks/embed.py --input='wiki/*' --model=DIR --peer_python=PYTHON \
        --similarity=glue/STS-B/dev.tsv

All read the same file of one sentence a line with the same model (a sentence-transformers folder) and write
.npy; sentences and their order are drawn by a fixed seed. ONNX Runtime runs what `bert-jax export --quantize`
writes, in float32 and in int8, with the Rust tokenizer and batches of 32 texts of similar length, as
sentence-transformers makes them. Times are of whole processes and, as each reports it, of the texts alone, on
the CPU. The first run of `bert-jax embed`, which fills its cache of compiled programs, has a line of its own.
With --similarity, Spearman's correlation of the cosines of each is printed.
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
from pathlib import Path

import numpy as np
from absl import app, flags
from scipy import stats

from bert_jax.tasks import table
from bert_jax.tasks.table import Columns
from data_pipelines import readers, sentences

FLAGS = flags.FLAGS
flags.DEFINE_string("input", None, "The corpus.", required=True)
flags.DEFINE_string("input_format", "wikiextractor", "As in bert-jax data.")
flags.DEFINE_string("model", None, "A sentence-transformers folder.", required=True)
flags.DEFINE_string("peer_python", sys.executable, "A Python with sentence-transformers and onnxruntime.")
flags.DEFINE_string("bert_jax", ".venv/bin/bert-jax", "The command to measure.")
flags.DEFINE_string("similarity", "", "A table with the columns sentence1, sentence2 and score.")
flags.DEFINE_integer("texts", 5000, "Sentences.")
flags.DEFINE_integer("pairs", 3, "Runs of each.")
flags.DEFINE_integer("max_seq_length", 256, "Tokens of a text at most, for all.")

OURS, TORCH, ONNX, INT8 = "bert-jax embed", "sentence-transformers", "ONNX Runtime", "ONNX Runtime, int8"

_TORCH = """
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

_ONNX = """
import os, sys, time
import numpy as np
import onnxruntime, tokenizers
path, texts, output, length = sys.argv[1:]
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
tokenizer = tokenizers.Tokenizer.from_file(os.path.join(os.path.dirname(path), "../tokenizer.json"))
tokenizer.enable_truncation(int(length))
lines = open(texts, encoding="utf-8").read().split("\\n")[:-1]
began = time.monotonic()
ids = [one.ids for one in tokenizer.encode_batch(lines)]
order = sorted(range(len(ids)), key=lambda n: -len(ids[n]))
vectors = [None] * len(ids)
for start in range(0, len(order), 32):
    chosen = order[start : start + 32]
    rows = np.zeros((len(chosen), len(ids[chosen[0]])), np.int64)
    mask = np.zeros_like(rows)
    for row, number in enumerate(chosen):
        rows[row, : len(ids[number])] = ids[number]
        mask[row, : len(ids[number])] = 1
    given = {"input_ids": rows, "attention_mask": mask, "token_type_ids": np.zeros_like(rows)}
    for number, vector in zip(chosen, session.run(["sentence_embedding"], given)[0]):
        vectors[number] = vector
print("seconds", time.monotonic() - began)
np.save(output, np.stack(vectors))
"""


def write_sentences(path: Path) -> None:
    drawn: list[str] = []
    for part in readers.split_ranges(readers.list_inputs(FLAGS.input), 1 << 40, FLAGS.input_format):
        for document in readers.read_documents(part, FLAGS.input_format):
            drawn += sentences.split(document)
        if len(drawn) >= 20 * FLAGS.texts:
            break
    write_lines(path, random.Random(0).sample(drawn, FLAGS.texts))


def write_lines(path: Path, texts: list[str]) -> None:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


class Way:
    """A way to make the vectors of a file of texts.

    Args:
        name: one of `OURS`, `TORCH`, `ONNX`, `INT8`.
        scratch: a directory with the exports, in which the vectors are written.
    """

    def __init__(self, name: str, scratch: Path):
        self.name, self._scratch = name, scratch
        self._output = scratch / f"{name}.npy"

    def __call__(self, texts: Path) -> tuple[float, float]:
        """Returns the seconds of the process, and those of the texts as it reports them."""
        began = time.monotonic()
        done = subprocess.run(
            self._command(texts),
            env=os.environ
            | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(self._scratch / "xla")},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        pattern = r"; ([\d.]+) s," if self.name == OURS else r"seconds ([\d.]+)"
        found = re.search(pattern, done.stdout)
        assert found, done.stdout
        return time.monotonic() - began, float(found[1])

    @property
    def vectors(self) -> np.ndarray:
        """Returns the vectors of the last call."""
        return np.load(self._output)

    def _command(self, texts: Path) -> list[str]:
        length = str(FLAGS.max_seq_length)
        if self.name == OURS:
            command = [
                FLAGS.bert_jax,
                "embed",
                f"--model={FLAGS.model}",
                f"--input={texts}",
                "--normalize",
            ]
            return [*command, f"--output={self._output}", "--overwrite", f"--max_seq_length={length}"]
        model = FLAGS.model
        if self.name != TORCH:
            file = "model.onnx" if self.name == ONNX else "model_quantized.onnx"
            model = str(self._scratch / "export/onnx" / file)
        program = _TORCH if self.name == TORCH else _ONNX
        return [FLAGS.peer_python, "-c", program, model, str(texts), str(self._output), length]


def main(_) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        measure(Path(scratch))


def measure(scratch: Path) -> None:
    command = [FLAGS.bert_jax, "export", f"--model={FLAGS.model}", f"--output={scratch / 'export'}"]
    subprocess.run([*command, "--quantize"], check=True, stdout=sys.stderr)
    texts = scratch / "texts.txt"
    write_sentences(texts)
    ways = [Way(name, scratch) for name in (TORCH, ONNX, INT8, OURS)]
    first = ways[-1](texts)
    runs: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
    for _ in range(FLAGS.pairs):
        for way in ways:
            runs[way.name].append(way(texts))
            print(way.name, *runs[way.name][-1], file=sys.stderr)
    vectors = {way.name: way.vectors for way in ways}
    print_table(runs | {"first run of bert-jax embed": [first]})
    print("\nRun by run, in texts/s, and as whole processes:\n")
    for name, other in ((OURS, TORCH), (OURS, ONNX), (ONNX, TORCH), (INT8, TORCH), (INT8, OURS)):
        whole, part = (
            ", ".join(f"{b[n] / a[n]:.2f}" for a, b in zip(runs[name], runs[other], strict=True))
            for n in (0, 1)
        )
        print(f"- {name} beside {other}: {part}; {whole}")
    for name in (OURS, ONNX, INT8):
        difference = np.abs(vectors[name] - vectors[TORCH]).max()
        print(f"\n{name}: the largest difference from a number of sentence-transformers is {difference:.1e}.")
    if FLAGS.similarity:
        print_similarity(ways, scratch)


def print_table(runs: dict[str, list[tuple[float, float]]]) -> None:
    def row(times):
        return ", ".join(f"{FLAGS.texts / seconds:,.0f}" for seconds in times)

    print("| | texts/s, run by run | median | texts/s of the whole process |")
    print("|---|---|---|---|")
    for name, values in runs.items():
        whole, inner = zip(*values, strict=True)
        median = FLAGS.texts / statistics.median(inner)
        print(f"| {name} | {row(inner)} | {median:,.0f} | {row(whole)} |")


def print_similarity(ways: list[Way], scratch: Path) -> None:
    columns = Columns("sentence1", "sentence2", "score")
    pairs = table.read_examples(
        FLAGS.similarity, columns, file_format="auto", quoting="none", parse_label=lambda text: float(text)
    )
    path = scratch / "pairs.txt"
    write_lines(path, [" ".join(text.split()) for text in (*pairs.texts_a, *pairs.texts_b)])
    for way in ways:
        way(path)
        first, second = np.split(way.vectors, 2)
        score = stats.spearmanr(np.sum(first * second, axis=1), pairs.labels)[0]
        print(f"\n{way.name}: Spearman's correlation with {Path(FLAGS.similarity).name} is {score:.4f}.")


if __name__ == "__main__":
    app.run(main)
