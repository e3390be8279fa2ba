"""Fine-tunes GLUE tasks with bert_jax and with transformers, in turn, with equal data and hyperparameters.

    python benchmarks/glue.py --data_dir=glue --model=MODEL --peer=hf_glue.py --peer_python=PYTHON \
        --tasks=mrpc,rte,cola,stsb --seeds=3 --output=glue

MODEL is a Hugging Face folder. The peer is `hf_glue.py MODEL DATA_DIR TASK SEED --limit N` in PyTorch;
bert_jax uses its AdamW, clipping, warm-up and linear decay. Every run adds a line to OUTPUT/runs.jsonl, and
runs in that file are not repeated; `--table` prints it. Examples per second count training only, including
compilation. Both libraries score the last step.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

FOLDERS = {"mrpc": "MRPC", "rte": "RTE", "cola": "CoLA", "stsb": "STS-B", "sst2": "SST-2"}
# The metrics of each task: {the peer's name: bert_jax's name}.
METRICS = {
    "mrpc": {"f1": "f1", "acc": "accuracy"},
    "rte": {"acc": "accuracy"},
    "cola": {"mcc": "matthews"},
    "stsb": {"pearson": "pearson", "spearman": "spearman"},
    "sst2": {"acc": "accuracy"},
}


def run_peer(args, task, seed, limit):
    command = [args.peer_python, args.peer, args.model, args.data_dir, FOLDERS[task], str(seed)]
    command += ["--limit", str(limit)] if limit else []
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    scores = {
        ours: float(re.search(rf"'{theirs}': ([-.\de]+)", output)[1])
        for theirs, ours in METRICS[task].items()
    }
    return scores, float(re.search(r"train ex/s ([.\d]+)", output)[1])


def run_ours(args, task, seed, limit, *flags, name="bert_jax"):
    data_dir = limited(args, task, limit) if limit else args.data_dir
    workdir = Path(args.output, f"{name}-{task}-{seed}")
    command = [
        *("bert-jax", "finetune", f"--config=finetune/glue:{task}", f"--workdir={workdir}"),
        *(f"--config.data_dir={data_dir}", f"--config.seed={seed}", f"--config.init_from={args.model}"),
        *("--config.optimizer.learning_rate=5e-5", "--config.optimizer.name=adamw_bias_corrected"),
        *("--config.optimizer.schedule=warmup_then_decay", "--config.epochs=3", "--config.batch_size=32"),
        *("--config.max_seq_length=128", "--config.eval.every=1000000"),
        *flags,
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    best = json.loads((workdir / "best.json").read_text())
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    done, seconds = 0, 0.0
    for line in lines:
        if line["kind"] == "train":
            seconds += (line["step"] - done) / line["steps_per_second"]
            done = line["step"]
    examples = 3 * sum(1 for _ in open(Path(data_dir, FOLDERS[task], "train.tsv"), encoding="utf-8"))
    return {ours: best["scores"][ours] for ours in METRICS[task].values()}, examples / seconds


def limited(args, task, limit):
    """Returns a copy of the GLUE folder with the first `limit` training rows."""
    target = Path(args.output, f"first-{limit}", FOLDERS[task])
    target.mkdir(parents=True, exist_ok=True)
    source = Path(args.data_dir, FOLDERS[task])
    lines = (source / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (target / "train.tsv").write_text("".join(lines[: limit + (task != "cola")]), encoding="utf-8")
    (target / "dev.tsv").write_bytes((source / "dev.tsv").read_bytes())
    return target.parent


def read(output):
    path = Path(output, "runs.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows):
    print(
        "| task | metric | bert_jax: median (least to most) | PyTorch: the same "
        "| examples/s, each run | PyTorch | times |"
    )
    print("|---|---|---|---|---|---|---|")
    for task in FOLDERS:
        for metric in METRICS[task].values():
            cells, rates = [], []
            for side in ("bert_jax", "peer"):
                of_side = [row for row in rows if (row["task"], row["side"]) == (task, side)]
                if not of_side:
                    break
                scores = sorted(row["scores"][metric] for row in of_side)
                cells.append(f"{statistics.median(scores):.4f} ({scores[0]:.4f} to {scores[-1]:.4f})")
                rates.append([row["rate"] for row in of_side])
            else:
                shown = [", ".join(f"{rate:.1f}" for rate in side) for side in rates]
                times = ", ".join(f"{ours / theirs:.2f}" for ours, theirs in zip(*rates, strict=False))
                print(f"| {task} | {metric} | {cells[0]} | {cells[1]} | {shown[0]} | {shown[1]} | {times} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir")
    parser.add_argument("--model")
    parser.add_argument("--peer")
    parser.add_argument("--peer_python", default=sys.executable)
    parser.add_argument("--tasks", default="mrpc,rte,cola,stsb")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=0, help="the first training rows; 0 is all")
    parser.add_argument("--output", required=True)
    parser.add_argument("--table", action="store_true", help="only print the table of what has been run")
    args = parser.parse_args()
    done = {(row["task"], row["seed"], row["side"]) for row in read(args.output)}
    Path(args.output).mkdir(parents=True, exist_ok=True)
    for seed in [] if args.table else range(args.seeds):
        for task in args.tasks.split(","):
            for side, run in (("bert_jax", run_ours), ("peer", run_peer)):
                if (task, seed, side) in done:
                    continue
                scores, rate = run(args, task, seed, args.limit)
                row = {
                    "task": task,
                    "seed": seed,
                    "side": side,
                    "scores": scores,
                    "rate": rate,
                    "limit": args.limit,
                }
                with open(Path(args.output, "runs.jsonl"), "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)
    table(read(args.output))


if __name__ == "__main__":
    main()
