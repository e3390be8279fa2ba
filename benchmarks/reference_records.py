"""bert_jax's records beside google-research/bert's way and the bare tokenizers library, on the same text.

    python benchmarks/reference_records.py --input='corpus/*' --vocab=vocab.txt [--dupe_factor=10] \\
        [--reference_dir=bert --reference_python=/path/to/python]

The text has a sentence a line and a blank line after each document. In turn, each as one process on one core:

- `encode_batch`: the Rust tokenizers library over the lines, and nothing else;
- `reference`: google-research/bert's create_pretraining_data.py, where `--reference_dir` names its folder
  (`bert` in the wheel bert-tensorflow) and `--reference_python` a Python with TensorFlow. Else its algorithm
  in pure Python with its own tokenizer, which stands in for it: without protocol buffers, and so faster;
- `google`: `bert-jax data --schema=google`, the same masked instances;
- `packed`: `bert-jax data`, unmasked rows, which need no dupe_factor.

Prints a markdown table of seconds and of MB of text per second, and whether the rows of `google` are those of
`reference`. Where the machine has other work, seconds of the processor say more than those of the clock.
"""

from __future__ import annotations

import collections
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tokenizers
from absl import app, flags

from bert_jax import tokenization
from bert_jax.data import tf_example, tfrecord
from data_pipelines import readers

FLAGS = flags.FLAGS
flags.DEFINE_string("input", None, "Text files: a sentence a line, a blank line after a document.")
flags.DEFINE_string("vocab", None, "A WordPiece vocabulary, uncased.")
flags.DEFINE_integer("dupe_factor", 10, "Of the masked instances.")
flags.DEFINE_integer("pairs", 3, "Times that each is run.")
flags.DEFINE_string(
    "reference_dir", "", "The folder of create_pretraining_data.py and tokenization.py; '': none."
)
flags.DEFINE_string("reference_python", "python3", "The Python that runs it.")

ROOT = Path(__file__).resolve().parents[1]
LENGTH, PREDICTIONS, PROB, SHORT, SEED = 128, 20, 0.15, 0.1, 12345
# The package without what its own __init__ may import, which newer versions of TensorFlow lack.
_AS_PACKAGE = """
import os, runpy, sys, types
folder = sys.argv.pop(1)
sys.modules["bert"] = types.ModuleType("bert")
sys.modules["bert"].__path__ = [folder]
runpy.run_path(os.path.join(folder, "create_pretraining_data.py"), run_name="__main__")
"""


def lines_of(paths: list[str]) -> list[str]:
    return [line.strip() for path in paths for line in Path(path).read_text(encoding="utf-8").split("\n")]


def encode_batch(paths: list[str], output: str) -> None:
    rust = tokenizers.BertWordPieceTokenizer(FLAGS.vocab, lowercase=True)
    lines = [line for line in lines_of(paths) if line]
    for start in range(0, len(lines), 2000):
        rust.encode_batch(lines[start : start + 2000])


def reference(paths: list[str], output: str) -> None:
    """Runs the script; all its other flags have the values of ours."""
    command = [FLAGS.reference_python, "-c", _AS_PACKAGE, os.path.abspath(FLAGS.reference_dir)]
    command += [f"--input_file={','.join(paths)}", f"--output_file={output}/reference.tfrecord"]
    command += [f"--vocab_file={FLAGS.vocab}", f"--dupe_factor={FLAGS.dupe_factor}"]
    subprocess.run(command, check=True, capture_output=True)


def stand_in(paths: list[str], output: str) -> None:
    """Does what the script does."""
    sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "tokenization")]
    from support import reference_instances, wordpiece_oracle

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
    settings = dict(max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS, masked_lm_prob=PROB)
    settings |= dict(short_seq_prob=SHORT, dupe_factor=FLAGS.dupe_factor, whole_word_mask=False, max_ngram=0)
    instances = list(reference_instances.instances(documents, vocabulary, settings, rng))
    rng.shuffle(instances)
    records = (reference_instances.encode(instance, LENGTH, PREDICTIONS) for instance in instances)
    tfrecord.write_records(os.path.join(output, "reference.tfrecord"), records)


def rows_of(path: str) -> list[tuple[bytes, ...]]:
    """The features of each record by their names: the order of their bytes is the writer's."""
    rows = []
    for record in tfrecord.RecordFile(path):
        lists = tf_example.parse_lists(record)
        rows.append(tuple(record[low:high] for _, (_, low, high) in sorted(lists.items())))
    return rows


def comparison(output: str) -> str:
    """Whether the rows of `google` are those of `reference`."""
    theirs = rows_of(f"{output}/reference.tfrecord")
    ours = rows_of(f"{output}/records/train-00000-of-00001.tfrecord")
    if ours == theirs:
        return f"All {len(ours):,} rows of google are those of reference, in its order."
    if sorted(ours) == sorted(theirs):
        return f"All {len(ours):,} rows of google are those of reference, in another order."
    common = (collections.Counter(ours) & collections.Counter(theirs)).total()
    return f"google has {len(ours):,} rows, reference {len(theirs):,}; {common:,} of them are in both."


def ours(schema: str):
    def run(paths: list[str], output: str) -> None:
        command = [sys.executable, "-m", "bert_jax", "data", f"--input={FLAGS.input}", "--workers=1"]
        command += [f"--vocab={FLAGS.vocab}", f"--output={output}/records", f"--schema={schema}"]
        command += [f"--dupe_factor={FLAGS.dupe_factor}", "--num_shards=1"] if schema == "google" else []
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)

    return run


def main(_) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    paths = readers.list_inputs(FLAGS.input)
    megabytes = sum(map(os.path.getsize, paths)) / 1e6
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    ways = {
        "encode_batch": encode_batch,
        "reference": reference if FLAGS.reference_dir else stand_in,
        "google": ours("google"),
        "packed": ours("packed"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    compared = ""
    for _ in range(FLAGS.pairs):
        with tempfile.TemporaryDirectory() as output:
            for name, way in ways.items():
                begun, used = time.monotonic(), sum(os.times()[:4])
                way(paths, output)
                seconds[name].append(time.monotonic() - begun)
                processor[name].append(sum(os.times()[:4]) - used)
                if name == "google" and not compared:
                    compared = comparison(output)
                shutil.rmtree(f"{output}/records", ignore_errors=True)
    print(f"{megabytes:.1f} MB of text, one core, dupe_factor {FLAGS.dupe_factor}\n")
    columns = "seconds", "of the processor", "MB per second of it, best"
    print("|", *columns, "times encode_batch's speed, run by run", "times the reference's", "", sep=" | ")
    print("|---" * 6 + "|")
    for name, times in processor.items():
        told, used = (", ".join(f"{one:.1f}" for one in taken) for taken in (seconds[name], times))
        bare = ", ".join(f"{b / t:.2f}" for b, t in zip(processor["encode_batch"], times, strict=True))
        slow = ", ".join(f"{r / t:.1f}" for r, t in zip(processor["reference"], times, strict=True))
        print(f"| {name} | {told} | {used} | {megabytes / min(times):.2f} | {bare} | {slow} |")
    print(f"\n{compared}")


if __name__ == "__main__":
    flags.mark_flags_as_required(["input", "vocab"])
    app.run(main)
