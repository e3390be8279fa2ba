"""`bert-jax predict` beside loops in PyTorch, in turn, as whole processes on a CPU.

    python benchmarks/predict.py --model=DIR --glue=GLUE --conll=CONLL --peer_python=PYTHON --output=DIR

The model is fine-tuned by `bert-jax finetune` for a few steps on single texts (SST-2), pairs (MRPC) and tags
(CoNLL-2003), and converted to folders of transformers, so that both sides predict the same rows with the same
weights. The loops sort by length, pad each batch to its longest row, and compute in `torch.inference_mode`.
Prints a markdown table: CPU seconds (user and system) and wall seconds of the process for --rows rows, CPU
seconds for a single row, which is the start, and the difference. What is in OUTPUT is not made again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

_PEER = """
import sys, numpy as np, torch
kind, folder, source, output, batch_size, length = sys.argv[1:]
batch_size, length = int(batch_size), int(length)
torch.set_num_threads(2)
import transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
named = "TokenClassification" if kind == "tags" else "SequenceClassification"
model = getattr(transformers, "AutoModelFor" + named).from_pretrained(folder).eval()
text = open(source, encoding="utf-8").read()
if kind == "tags":
    given = [[line.split()[0] for line in part.split("\\n")] for part in text.strip().split("\\n\\n")]
    encoded = tokenizer(given, is_split_into_words=True, truncation=True, max_length=length)
else:
    rows = [line.split("\\t") for line in text.split("\\n")[1:-1]]
    columns = [[row[n] for row in rows] for n in ((0,) if kind == "single" else (3, 4))]
    given = rows
    encoded = tokenizer(*columns, truncation=True, max_length=length)
ids, types = encoded["input_ids"], encoded["token_type_ids"]
order = sorted(range(len(ids)), key=lambda n: -len(ids[n]))
found = [None] * len(ids)
with torch.inference_mode():
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        width = len(ids[chosen[0]])
        batch = np.zeros((3, len(chosen), width), np.int64)
        batch[0] = tokenizer.pad_token_id
        for row, n in enumerate(chosen):
            size = len(ids[n])
            batch[0, row, :size], batch[1, row, :size], batch[2, row, :size] = ids[n], types[n], 1
        inputs = dict(zip(("input_ids", "token_type_ids", "attention_mask"), torch.from_numpy(batch)))
        outputs = model(**inputs).logits.softmax(-1).numpy()
        for row, n in enumerate(chosen):
            found[n] = outputs[row]
names = model.config.id2label
with open(output, "w", encoding="utf-8") as file:
    for n, probabilities in enumerate(found):
        if kind != "tags":
            best = names[int(probabilities.argmax())]
            file.write("\\t".join([str(n), best, *(f"{p:.6f}" for p in probabilities)]) + "\\n")
            continue
        best, before = probabilities.argmax(-1), None
        for place, word in enumerate(encoded.word_ids(n)):
            if word is not None and word != before:
                file.write(f"{given[n][word]} {names[int(best[place])]}\\n")
            before = word
        file.write("\\n")
"""


class Case:
    """One kind of rows: its model on both sides and its files.

    Args:
        kind: "single", "pairs" or "tags".
        args: the flags.
    """

    def __init__(self, kind: str, args: argparse.Namespace):
        self.kind, self._args = kind, args
        self._folder = args.output / kind
        self._folder.mkdir(parents=True, exist_ok=True)
        self.inputs = {count: self._input(count) for count in (args.rows, 1)}
        self._run, self._converted = self._folder / "run", self._folder / "converted"
        self._make_models()

    def _input(self, count: int) -> Path:
        """Returns a file of `count` rows."""
        if self.kind == "tags":
            text = (self._args.conll / "eng.testa").read_text(encoding="utf-8")
            sentences = (part for part in text.split("\n\n") if part.strip() and "-DOCSTART-" not in part)
            path = self._folder / f"{count}.conll"
            path.write_text("".join(part.strip() + "\n\n" for part in itertools.islice(sentences, count)))
            return path
        task = "MRPC" if self.kind != "single" else "SST-2"
        text = (self._args.glue / task / "train.tsv").read_text(encoding="utf-8-sig")
        header, *rows = text.rstrip("\n").split("\n")
        rows = rows[:count]
        assert len(rows) == count, f"{task} has {len(rows)} rows"
        path = self._folder / f"{count}.tsv"
        path.write_text("".join(row + "\n" for row in (header, *rows)), encoding="utf-8")
        return path

    def _make_models(self) -> None:
        config = {"single": "glue:sst2", "pairs": "glue:mrpc", "tags": "conll"}[self.kind]
        data = self._args.conll if self.kind == "tags" else self._args.glue
        fields = {"init_from": self._args.model, "data_dir": data, "train_rows": 64, "epochs": 1}
        given = [f"--config.{name}={value}" for name, value in fields.items()]
        if not (self._run / "best.json").exists():
            subprocess.run(
                bert_jax("finetune", f"--config=finetune/{config}", f"--workdir={self._run}", *given),
                check=True, stdout=sys.stderr,
            )  # fmt: skip
        if not self._converted.exists():
            command = bert_jax("convert", f"--input={self._run}", f"--output={self._converted}")
            subprocess.run([*command, "--to=huggingface"], check=True, stdout=sys.stderr)

    def ours(self, count: int) -> list[str]:
        """Returns our command for `count` rows."""
        output = self._folder / ("ours.conll" if self.kind == "tags" else "ours.tsv")
        given = [f"--input={self.inputs[count]}", f"--output={output}", "--overwrite"]
        return bert_jax("predict", f"--workdir={self._run}", *given)

    def peer(self, count: int, batch_size: int) -> list[str]:
        """Returns the command of the loop."""
        given = [self.kind, self._converted, self.inputs[count], self._folder / "peer", batch_size, 128]
        return [self._args.peer_python, "-c", _PEER, *map(str, given)]


def bert_jax(*args: str) -> list[str]:
    """Returns a command of bert_jax."""
    return [sys.executable, "-m", "bert_jax", *args]


def seconds(command: list[str], cache: Path) -> tuple[float, float]:
    """Returns the CPU and the wall seconds of a process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    errors = process.stderr.read()  # type: ignore[union-attr]
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, errors
    return usage.ru_utime + usage.ru_stime, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a folder of transformers or of a run")
    parser.add_argument("--glue", type=Path, required=True, help="a folder with SST-2 and MRPC")
    parser.add_argument("--conll", type=Path, required=True, help="a folder with eng.train and eng.testa")
    parser.add_argument("--peer_python", required=True, help="a Python with torch and transformers")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kinds", default="single,pairs,tags")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch_sizes", default="32,64", help="of the loops")
    args = parser.parse_args()
    sizes = [int(size) for size in args.batch_sizes.split(",") if size]
    cases = [Case(kind, args) for kind in args.kinds.split(",")]
    print(f"| | | CPU s of {args.rows:,} rows | wall s | CPU s of one row | CPU s of the rows alone |")
    print("|---|---|---|---|---|---|", flush=True)
    for case in cases:
        ways = {"bert-jax": case.ours} | {
            f"PyTorch, {size} rows": functools.partial(case.peer, batch_size=size) for size in sizes
        }
        cold = seconds(case.ours(args.rows), args.output / f"xla-{case.kind}")
        seconds(case.ours(1), args.output / f"xla-{case.kind}")
        print(f"| {case.kind} | bert-jax, first run | {cold[0]:.1f} | {cold[1]:.1f} | | |", flush=True)
        found: dict[str, list[list[tuple[float, float]]]] = {name: [[], []] for name in ways}
        for _ in range(args.turns):
            for name, command in ways.items():
                for place, count in enumerate((args.rows, 1)):
                    used = seconds(command(count), args.output / f"xla-{case.kind}")
                    found[name][place].append(used)
        for name, (all_rows, one) in found.items():
            cpu, wall = (", ".join(f"{each[n]:.1f}" for each in all_rows) for n in (0, 1))
            start = statistics.median(each[0] for each in one)
            alone = ", ".join(f"{each[0] - start:.1f}" for each in all_rows)
            shown = ", ".join(f"{each[0]:.1f}" for each in one)
            print(f"| {case.kind} | {name} | {cpu} | {wall} | {shown} | {alone} |", flush=True)


if __name__ == "__main__":
    main()
