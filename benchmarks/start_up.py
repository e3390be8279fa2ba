"""The first answer of `fill-mask`, `embed` and `predict` beside transformers in PyTorch, as whole processes.

    python benchmarks/start_up.py --vocab=vocab.txt --peer_python=PYTHON --output=DIR

The models are BERTs of --layers and --hidden_size with random weights, which take as long as trained ones. In
each turn, the peer, bert_jax without its cache of compiled programs, and bert_jax with it answer one text.
Prints a markdown table of wall times in seconds. What is in OUTPUT is not made again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

TEXT = "The river flows into the [MASK] sea."

_MAKE = """
import sys, transformers
folder, vocab, layers, width = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sizes = dict(num_hidden_layers=layers, hidden_size=width, intermediate_size=4 * width)
sizes |= dict(num_attention_heads=width // 64, vocab_size=sum(1 for _ in open(vocab)))
config = transformers.BertConfig(**sizes)
transformers.BertForMaskedLM(config).save_pretrained(folder)
transformers.BertTokenizerFast(vocab).save_pretrained(folder)
"""

_PEERS = {
    "fill-mask": "print(transformers.pipeline('fill-mask', folder, device='cpu')(text)[0])",
    "embed": """
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModel.from_pretrained(folder)
with torch.no_grad():
    print(model(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(1)[0, :3])
""",
    "predict": "print(transformers.pipeline('text-classification', folder, device='cpu')(text))",
}


def bert_jax(*args: str) -> list[str]:
    return [sys.executable, "-m", "bert_jax", *args]


def make(args: argparse.Namespace) -> tuple[Path, Path, Path]:
    """Returns a folder with a masked LM, a work directory of a classifier, and the folder of its model."""
    model, run, classifier = (args.output / name for name in ("model", "run", "classifier"))
    if not model.exists():
        sizes = [str(args.layers), str(args.hidden_size)]
        subprocess.run([args.peer_python, "-c", _MAKE, model, args.vocab, *sizes], check=True)
    train = args.output / "train.tsv"
    train.write_text("text\tlabel\n" + "a good day\tyes\na bad day\tno\n" * 4)
    if not (run / "best.json").exists():
        fields = {"init_from": model, "data.train": train, "data.eval": train, "data.text_a": "text"}
        fields |= {"data.label": "label", "epochs": 1, "batch_size": 8, "max_seq_length": 32}
        given = [f"--config.{name}={value}" for name, value in fields.items()]
        command = bert_jax("finetune", "--config=finetune/classification", f"--workdir={run}", *given)
        subprocess.run(command, check=True, stdout=sys.stderr)
    if not classifier.exists():
        subprocess.run(
            bert_jax("convert", f"--input={run}", f"--output={classifier}", "--to=huggingface"), check=True
        )
    return model, run, classifier


def seconds(command: list[str], **environment: str) -> float:
    """Returns the wall time of a process."""
    # Python may store the compiled modules of both, as an installation by pip does.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.monotonic()
    subprocess.run(
        command,
        check=True,
        env=inherited | {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"} | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", required=True, help="a WordPiece vocabulary")
    parser.add_argument("--peer_python", required=True, help="a Python with torch and transformers")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden_size", type=int, default=768)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    model, run, classifier = make(args)
    texts, vectors, answers = (args.output / name for name in ("texts.tsv", "vectors.npy", "answers.tsv"))
    texts.write_text(f"text\n{TEXT}\n")
    lines = args.output / "texts.txt"
    lines.write_text(f"{TEXT}\n")
    ours = {
        "fill-mask": bert_jax("fill-mask", f"--model={model}", TEXT),
        "embed": bert_jax(
            "embed", f"--model={model}", f"--input={lines}", f"--output={vectors}", "--overwrite"
        ),
        "predict": bert_jax(
            "predict", f"--workdir={run}", f"--input={texts}", f"--output={answers}", "--overwrite"
        ),
    }
    print("| | transformers, PyTorch | bert_jax, cold | bert_jax, compiled before | ratios of medians |")
    print("|---|---|---|---|---|")
    for name, command in ours.items():
        folder = classifier if name == "predict" else model
        program = f"import sys, torch, transformers\nfolder, text = sys.argv[1:]\n{_PEERS[name]}"
        peer = [args.peer_python, "-c", program, str(folder), TEXT]
        warm, cold = (args.output / f"{name}-{kind}" for kind in ("warm", "cold"))
        seconds(peer), seconds(command, JAX_COMPILATION_CACHE_DIR=str(warm))  # files are read from memory
        found: list[list[float]] = [[], [], []]
        for _ in range(args.pairs):
            shutil.rmtree(cold, ignore_errors=True)
            found[0].append(seconds(peer))
            found[1].append(seconds(command, JAX_COMPILATION_CACHE_DIR=str(cold)))
            found[2].append(seconds(command, JAX_COMPILATION_CACHE_DIR=str(warm)))
        shown = " | ".join(", ".join(f"{one:.2f}" for one in times) for times in found)
        first, *others = map(statistics.median, found)
        print(f"| {name} | {shown} | {', '.join(f'{one / first:.2f}' for one in others)} |", flush=True)


if __name__ == "__main__":
    main()
