"""Model cards, which describe a model, its training and its scores, and uploads to the Hugging Face hub."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epy

from bert_jax.convert.families import FAMILIES
from bert_jax.convert.formats import work_directory
from bert_jax.convert.heads import HEADS
from bert_jax.convert.model import Model
from bert_jax.errors import UserError, hide_secrets
from bert_jax.io import files, json_files, tfds
from bert_jax.io.wording import counted
from bert_jax.workdir import run_directory

with epy.lazy_imports():
    import huggingface_hub

FILE = "README.md"

_BEFORE_PATH = re.compile(rf"[\w.]+=|{tfds.PREFIX}")
# Flags that describe where a run took place, not what it computed.
_OF_THE_MACHINE = ("coordinator_address", "num_processes", "process_id", "compilation_cache", "push_to")
# {name in a card: field of a run's configuration}
_FACTS = {
    "task": "task",
    "data": "data_dir",
    "trained on": "data.train",
    "evaluated on": "data.eval",
    "steps": "steps",
    "epochs": "epochs",
    "batch size": "batch_size",
    "optimizer": "optimizer.name",
    "learning rate": "optimizer.learning_rate",
    "warm-up steps": "optimizer.warmup_steps",
    "tokens per row": "max_seq_length",
    "seed": "seed",
    "started from": "init_from",
    "adapter": "adapter.kind",
    "teacher": "distillation.teacher",
}


def make(model: Model, source: str, command: str, usage: tuple[str, Sequence[str]] | None = None) -> str:
    """Returns the card of a model: Markdown with a YAML header, as the Hugging Face hub displays it.

    Args:
        model: the model.
        source: the path that the model was read from; the details of its run are read there.
        command: the command that created the folder.
        usage: the name of the library that runs the model, and lines of Python that do so; None for a Hugging
            Face folder.
    """
    library, use = usage or _usage(model)
    pipeline = "sentence-similarity" if model.is_sentence_encoder else HEADS[model.head].pipeline
    tags = [model.family.model_type, "bert_jax"]
    data = huggingface_hub.ModelCardData(library_name=library, pipeline_tag=pipeline or None, tags=tags)
    case = f", {'uncased' if model.tokenizer.lower_case else 'cased'}" if model.tokenizer else ""
    heads = counted(model.config.num_attention_heads, "attention head")
    text = f"# {model.family.name}, {model.size.partition(',')[0]}\n\n{model.size}, {heads}{case}.\n"
    if model.labels:
        text += f"\nLabels: {', '.join(model.labels)}.\n"
    if work_directory.FORMAT.detect(source):
        run = run_directory.read_run(source)
        if run["command"] == work_directory.COMMAND:
            text += f"\nConverted from {public_path(run.get('source') or '') or 'another model'}.\n"
        else:
            text += _training(run) + _results(run_directory.find_root(source))
    code = "\n".join(use)
    text += f"\n## Use\n\n```python\n{code}\n```\n\n## Made by\n\n```\n{public_command(command)}\n```\n"
    return f"---\n{data.to_yaml()}\n---\n\n{text}"


def of_run(directory: str) -> str:
    """Returns the card of a fine-tuning run as Markdown, for its work directory."""
    run = run_directory.read_run(directory)
    model = run["config"]["model"]
    kind = model.get("model_type") or "bert"  # older runs have none
    name = FAMILIES[kind].name if kind in FAMILIES else kind
    size = f"{counted(model['num_hidden_layers'], 'layer')} of {model['hidden_size']}"
    labels = f"\nLabels: {', '.join(run['labels'])}.\n" if run.get("labels") else ""
    title = f"# {run['config']['task']}, fine-tuned: {name}, {size}\n{labels}"
    return title + _training(run) + _results(run_directory.find_root(directory))


def _usage(model: Model) -> tuple[str, Sequence[str]]:
    if model.is_sentence_encoder:
        return "sentence-transformers", [
            "from sentence_transformers import SentenceTransformer",
            "",
            'model = SentenceTransformer("DIR")',
            'vectors = model.encode(["One text.", "Another one."])',
        ]
    auto = HEADS[model.head].auto_class
    return "transformers", [
        f"from transformers import AutoTokenizer, {auto}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("DIR")',
        f'model = {auto}.from_pretrained("DIR")',
    ]


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = (f"| {' | '.join(map(str, cells))} |\n" for cells in (header, ["---"] * len(header), *rows))
    return f"\n## {title}\n\n{''.join(lines)}"


def _training(run: Mapping[str, Any]) -> str:
    facts: dict[str, Any] = {"command": f"bert-jax {run['command']}"}
    for name, field in _FACTS.items():
        value: Any = run["config"]
        for part in field.split("."):
            value = (value or {}).get(part)
        facts[name] = public_path(value) if isinstance(value, str) else value
    facts["records"] = (run.get("records") or {}).get("fingerprint")
    facts |= {f"{split} file, SHA-256": digest for split, digest in (run.get("files") or {}).items()}
    # A seed of 0 is meaningful; any other fact that is 0 or empty is skipped.
    rows = [fact for fact in facts.items() if fact[1] or fact == ("seed", 0)]
    command = run.get("command_line")
    return _table("Training", ("", ""), rows) + (
        f"\n```\n{public_command(command)}\n```\n" if command else ""
    )


def _results(root: str) -> str:
    best, metrics = os.path.join(root, "best.json"), os.path.join(root, "metrics.jsonl")
    scores: Mapping[str, Any] = {}
    if files.exists(best):
        scores = json_files.read(best, {"scores": dict})["scores"]
    else:
        for row in json_files.read_line_files(metrics):
            if row.get("kind") == "eval":
                scores = {name: value for name, value in row.items() if name not in ("kind", "step")}
    rows = [(name, f"{value:.4g}") for name, value in scores.items() if json_files.is_of(value, float)]
    return _table("Held-out results", ("metric", "value"), rows) if rows else ""


def public_path(path: str) -> str:
    """Returns a path in a form that can be published, without the local folders of a machine.

    A relative path is unchanged. An absolute path, a path that leaves the working directory, and a URL are
    shortened to their last component; a checkpoint to its work directory and step. What stands before a path
    is kept: the field in `FIELD=PATH`, and the `tfds:` of a prepared data set.
    """
    if before := _BEFORE_PATH.match(path):
        return before[0] + public_path(path[before.end() :])
    if not (path.startswith(("/", "~")) or "://" in path or ".." in path.split("/")):
        return path
    parts = [part for part in hide_secrets(path).partition("?")[0].split("/") if part]
    return "/".join(parts[-3:] if parts[-2:-1] in (["checkpoints"], ["best"]) else parts[-1:])


def public_command(command: str) -> str:
    """Returns a command line without local folders, addresses of a cluster, and secrets."""
    words = []
    for word in shlex.split(hide_secrets(command)):
        name, equals, value = word.partition("=")
        if not equals or not name.startswith("--"):
            words.append(public_path(word))
        elif name.removeprefix("--") not in _OF_THE_MACHINE:
            words.append(f"{name}={','.join(map(public_path, value.split(',')))}")
    return shlex.join(words)


def push(folder: str, repository: str) -> str:
    """Uploads a folder to the hub with the token of `hf auth login` and returns its URL.

    Raises:
        UserError: the upload failed.
    """
    api = huggingface_hub.HfApi()
    try:
        url = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:  # errors of huggingface_hub, of its HTTP library, or of the network
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"--push_to={repository}: {reason}; {folder} is written, and can be pushed again"
        ) from error
    return str(url)
