"""Rows of running text for masked LM: `bert-jax data` beside what transformers' run_mlm.py does, in turn.

    python benchmarks/running_text.py --input=GLOB --vocab=vocab.txt --peer_python=PYTHON --output=DIR

The text of files of WikiExtractor is written with a paragraph a line, the same for both sides. They make rows
of 128 tokens of it with two processes each: `bert-jax data --nsp=none --full_rows`, and two passes of the
library datasets, which tokenize with the fast tokenizer, concatenate and divide. Prints a markdown table of
whole processes: wall and CPU seconds (user and system, of the workers too), the largest memory of a process,
and the rows and bytes that were written.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bert_jax.data import records
from data_pipelines import readers

LENGTH, WORKERS = 128, 2
_PEER = f"""
import itertools, sys
import datasets, transformers
source, vocab, cache = sys.argv[1:]
tokenizer = transformers.BertTokenizerFast(vocab)
texts = datasets.load_dataset("text", data_files=source, split="train", cache_dir=cache)

def tokenize(batch):
    lines = [line for line in batch["text"] if line]
    return tokenizer(lines, return_special_tokens_mask=True)

def divide(batch):
    joined = {{name: list(itertools.chain.from_iterable(batch[name])) for name in batch}}
    whole = len(joined["input_ids"]) // {LENGTH} * {LENGTH}
    return {{name: [x[n : n + {LENGTH}] for n in range(0, whole, {LENGTH})] for name, x in joined.items()}}

parts = dict(batched=True, num_proc={WORKERS})
tokenized = texts.map(tokenize, remove_columns=["text"], **parts)
print(len(tokenized.map(divide, **parts)))
"""


def write_text(pattern: str, path: Path) -> None:
    """Writes the documents of WikiExtractor's files, a paragraph a line and a blank line after each."""
    with path.open("w", encoding="utf-8") as file:
        for source in readers.list_inputs(pattern):
            for line in Path(source).read_text(encoding="utf-8").split("\n"):
                if line.startswith("</doc>"):
                    file.write("\n")
                elif line.strip() and not line.startswith("<doc "):
                    file.write(line.strip() + "\n")


def timed(command: list[str]) -> tuple[str, float, float, float]:
    """Returns what a process prints, its wall and CPU seconds, and its peak memory or a child's, in MB."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    printed = process.stdout.read()  # type: ignore[union-attr]
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command[:4]} failed: run it without this script to see why")
    return printed, time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def size_of(folder: Path) -> float:
    """Returns the megabytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", required=True, help="files of WikiExtractor")
    parser.add_argument("--vocab", required=True, help="an uncased WordPiece vocabulary")
    parser.add_argument("--peer_python", required=True, help="a Python with datasets and transformers")
    parser.add_argument("--output", type=Path, required=True, help="a folder for scratch files")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    text, made = args.output / "text.txt", args.output / "made"
    write_text(args.input, text)
    files = [f"--input={text}", f"--vocab={args.vocab}", f"--output={made}", f"--workers={WORKERS}"]
    rows = ["--nsp=none", "--full_rows", f"--max_seq_length={LENGTH}"]
    ways = {
        "bert-jax data": [sys.executable, "-m", "bert_jax", "data", "--input_format=text", *files, *rows],
        "datasets": [args.peer_python, "-c", _PEER, str(text), args.vocab, str(made)],
    }
    megabytes = text.stat().st_size / 1e6
    print(f"{megabytes:.1f} MB of text, {WORKERS} processes\n")
    print("| | wall s | MB of text per second | CPU s | MB of a process | rows | MB written |")
    print("|---|---|---|---|---|---|---|", flush=True)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    results: dict[str, str] = {}
    for _ in range(args.turns):
        for name, command in ways.items():
            shutil.rmtree(made, ignore_errors=True)
            printed, *used = timed(command)
            found[name].append((used[0], used[1], used[2]))
            rows_made = int(printed) if name == "datasets" else len(records.open_dataset(str(made), "train"))
            results[name] = f"{rows_made:,} | {size_of(made):.0f}"
    for name, times in found.items():
        wall, cpu = (", ".join(f"{one[n]:.1f}" for one in times) for n in (0, 1))
        best, memory = min(one[0] for one in times), max(one[2] for one in times)
        print(f"| {name} | {wall} | {megabytes / best:.2f} | {cpu} | {memory:.0f} | {results[name]} |")
    shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    main()
