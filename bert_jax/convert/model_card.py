"""Writes model cards, which describe a model, its training and its scores, and pushes models to the hub."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from etils import epy

from bert_jax.convert.families import FAMILIES
from bert_jax.convert.formats import work_directory
from bert_jax.convert.heads import HEADS
from bert_jax.convert.model import Model
from bert_jax.errors import UserError, hide_secrets, is_installed
from bert_jax.io import files, json_files, tfds
from bert_jax.io.wording import counted
from bert_jax.workdir import run_directory

with epy.lazy_imports():
    import huggingface_hub

FILE = "README.md"

_BEFORE_PATH = re.compile(rf"[\w.]+=|{tfds.PREFIX}")
# Flags that describe where a run took place, not what it computed.
_OF_THE_MACHINE = (
    "coordinator_address",
    "num_processes",
    "process_id",
    "compilation_cache",
    "push_to",
)


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
    head = ["---", f"library_name: {library}", "tags:", f"- {model.family.model_type}", "- bert_jax"]
    pipeline = "sentence-similarity" if model.is_sentence_encoder else HEADS[model.head].pipeline
    if pipeline:
        head.append(f"pipeline_tag: {pipeline}")
    config = model.config
    lines = [
        *head,
        "---",
        "",
        f"# {model.family.name}, {counted(config.num_hidden_layers, 'layer')} of {config.hidden_size}",
        "",
        f"{model.parameter_count:,} parameters: {counted(config.num_hidden_layers, 'layer')}, hidden size "
        f"{config.hidden_size}, {counted(config.num_attention_heads, 'head')}, feed-forward size "
        f"{config.intermediate_size}, {config.max_position_embeddings} positions, {config.vocab_size:,} "
        "embeddings"
        + (f", {'uncased' if model.tokenizer.lower_case else 'cased'}." if model.tokenizer else "."),
    ]
    if model.labels:
        lines += ["", f"Labels: {', '.join(model.labels)}."]
    if work_directory.FORMAT.detect(source):
        run = run_directory.read_run(source)
        if run["command"] == work_directory.COMMAND:
            lines += ["", f"Converted from {public_path(run.get('source') or '') or 'another model'}."]
        else:
            lines += [*_describe_training(run), *_describe_scores(run_directory.find_root(source))]
    lines += [
        "",
        "## Use",
        "",
        "```python",
        *use,
        "```",
        "",
        "## Made by",
        "",
        *_code(public_command(command)),
        "",
    ]
    return "\n".join(lines)


def _usage(model: Model) -> tuple[str, Sequence[str]]:
    """Returns the library that loads a Hugging Face folder of a model, and lines of Python that do so."""
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


def public_path(path: str) -> str:
    """Returns a path in a form that can be published, without the local folders of a machine.

    A relative path is unchanged. An absolute path, a path that leaves the working directory, and a URL are
    shortened to their last component; a checkpoint in a work directory to the part from that directory on.
    What stands before a path is kept: the field in `FIELD=PATH`, and the `tfds:` of a prepared data set.
    """
    if before := _BEFORE_PATH.match(path):
        return before[0] + public_path(path[before.end() :])
    if not (path.startswith(("/", "~")) or "://" in path or ".." in path.split("/")):
        return path
    parts = [part for part in hide_secrets(path).partition("?")[0].split("/") if part]
    if len(parts) > 2 and (parts[-2] in ("checkpoints", "best")):
        return "/".join(parts[-3:])
    return parts[-1] if parts else ""


def public_command(command: str) -> str:
    """Returns a command line in a form that can be published.

    Local folders and the addresses of a cluster are removed, and the values of flags named like a token, a
    key or a password are replaced by "...".
    """
    kept = []
    for word in shlex.split(hide_secrets(command)):
        name, equals, value = word.partition("=")
        if not equals or not name.startswith("--"):
            kept.append(public_path(word))
        elif name.removeprefix("--") not in _OF_THE_MACHINE:
            kept.append(f"{name}={','.join(map(public_path, value.split(',')))}")
    return shlex.join(kept)


def of_run(directory: str) -> str:
    """Returns the card of a fine-tuning run as Markdown, for its work directory."""
    run = run_directory.read_run(directory)
    lines = [*_title(run), *_describe_training(run), *_describe_scores(run_directory.find_root(directory))]
    return "\n".join([*lines, ""])


def of_repeats(run: str, settings: Sequence[Mapping[str, Any]]) -> str:
    """Returns the card of fine-tuning runs that differ in seed and setting, for their common directory.

    Args:
        run: the work directory of one run of the best setting.
        settings: the summaries of the settings (`runs.grid.summarize`), best first.
    """
    described = run_directory.read_run(run)
    columns = ("median", "best", "worst", "deviation")
    names = ("setting", "metric", *columns, "seeds", "degenerate")
    lines = ["", "## Held-out results", "", _row(names), _row(["---"] * len(names))]
    for one in settings:
        setting = ",".join(public_path(unquote(part)) for part in one["setting"].split(",")) or "-"
        for metric, scores in one["scores"].items():
            values = [f"{scores[column]:.4g}" for column in columns]
            lines.append(_row([setting, metric, *values, one["seeds"], one["degenerate"]]))
    seed = {**described, "config": {**described["config"], "seed": None}}
    return "\n".join([*_title(described), *lines, *_describe_training(seed), ""])


def _title(run: Mapping[str, Any]) -> list[str]:
    config = run["config"]
    model = config["model"]
    size = f"{counted(model['num_hidden_layers'], 'layer')} of {model['hidden_size']}"
    kind = model.get("model_type") or "bert"  # older runs have none
    name = FAMILIES[kind].name if kind in FAMILIES else kind
    lines = [f"# {config['task']}, fine-tuned: {name}, {size}"]
    return [*lines, "", f"Labels: {', '.join(run['labels'])}."] if run.get("labels") else lines


def _row(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _code(text: str) -> list[str]:
    return ["```", text, "```"]


def _describe_training(run: Mapping[str, Any]) -> list[str]:
    config = run["config"]
    lines = ["", "## Training", "", "| | |", "|---|---|"]
    facts: dict[str, Any] = {"command": f"bert-jax {run['command']}"}
    facts["task"] = config.get("task")
    data = config.get("data") or {}
    facts["data"] = public_path(config.get("data_dir") or "")
    facts["trained on"] = public_path(data.get("train") or "")
    facts["evaluated on"] = public_path(data.get("eval") or "")
    facts["steps"] = config.get("steps")
    facts["epochs"] = config.get("epochs")
    facts["batch size"] = config.get("batch_size")
    optimizer = config.get("optimizer") or {}
    facts["optimizer"] = optimizer.get("name")
    facts["learning rate"] = optimizer.get("learning_rate")
    facts["warm-up steps"] = optimizer.get("warmup_steps")
    records = run.get("records") or {}
    facts["records"] = records.get("fingerprint")
    facts["tokens a row"] = records.get("max_seq_length") or config.get("max_seq_length")
    facts["seed"] = config.get("seed")
    for split, digest in (run.get("files") or {}).items():
        facts[f"{split} file, SHA-256"] = digest
    facts["started from"] = public_path(config.get("init_from") or "")
    facts["adapter"] = _adapter(config.get("adapter") or {})
    facts["teacher"] = public_path((config.get("distillation") or {}).get("teacher") or "")
    # A seed of 0 is meaningful; any other fact that is 0 or empty is left out.
    lines += [_row(fact) for fact in facts.items() if fact[1] or (fact[0] == "seed" and fact[1] == 0)]
    command = run.get("command_line")
    return [*lines, "", *_code(public_command(command))] if command else lines


def _adapter(adapter: Mapping[str, Any]) -> str:
    """Returns which few parameters were trained, with the sizes of LoRA; "" if all were."""
    kind = str(adapter.get("kind") or "")
    return f"lora, rank {adapter['rank']}, alpha {adapter['alpha']:g}" if kind == "lora" else kind


def _describe_scores(root: str) -> list[str]:
    scores = _scores(root)
    if not scores:
        return []
    lines = ["", "## Held-out results", "", "| metric | value |", "|---|---|"]
    return lines + [f"| {name} | {value:.4g} |" for name, value in scores.items()]


def _scores(root: str) -> Mapping[str, float]:
    """Returns the best scores of a fine-tuning run, else a run's last evaluation; empty if there is none."""
    best, metrics = os.path.join(root, "best.json"), os.path.join(root, "metrics.jsonl")
    if files.exists(best):
        return _numbers(json_files.unsealed(json_files.read(best, {"scores": dict}), best)["scores"])
    last: Mapping[str, float] = {}
    for row in json_files.read_line_files(metrics):
        if row.get("kind") == "eval":
            last = {name: value for name, value in row.items() if name not in ("kind", "step")}
    return _numbers(last)


def _numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if json_files.is_of(value, float)}


def check_push(repository: str) -> None:
    """Raises a UserError if the repository's name is invalid or huggingface_hub is not installed."""
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise UserError(f"--push_to={repository}: expected USER/NAME")
    if not is_installed("huggingface_hub"):
        raise UserError("--push_to needs huggingface_hub; pip install huggingface_hub")


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
