"""Model cards, which describe a model, its training and its scores, and uploads to the Hugging Face hub."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epy

from bert_jax import hub
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
    from huggingface_hub import utils as hub_utils

FILE = "README.md"

_BEFORE_PATH = re.compile(rf"[\w.]+=|{tfds.PREFIX}")
# Flags that describe where a run took place, not what it computed.
_OF_THE_MACHINE = ("coordinator_address", "num_processes", "process_id", "compilation_cache", "push_to")
# {metric: its name on the hub, where it is another one}
_ON_HUB = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
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


def make(
    model: Model,
    source: str,
    command: str = "",
    usage: tuple[str, Sequence[str]] | None = None,
    *,
    license: str = "",
    repository: str = "",
) -> str:
    """Returns the card of a model: Markdown with a YAML header, as the Hugging Face hub displays it.

    The details of its run are read at `source`. `command` created the folder; "" stands for the run's
    command. `usage` has the name of the library that runs the model, and lines of Python that do so; None for
    a Hugging Face folder. `repository` is the model's name on the hub.
    """
    library, use = usage or _usage(model, repository or "DIR")
    pipeline = "sentence-similarity" if model.is_sentence_encoder else HEADS[model.head].pipeline
    tags = [model.family.model_type, "bert_jax"]
    header: dict[str, Any] = {"base_model": _on_hub(model.source)}
    case = f", {'uncased' if model.tokenizer.lower_case else 'cased'}" if model.tokenizer else ""
    heads = counted(model.config.num_attention_heads, "attention head")
    text = f"# {model.family.name}, {model.size.partition(',')[0]}\n\n{model.size}, {heads}{case}.\n"
    if model.labels:
        text += f"\nLabels: {', '.join(model.labels)}.\n"
    if work_directory.FORMAT.detect(source):
        run = run_directory.read_run(source)
        if run["command"] == work_directory.COMMAND:
            text += f"\nConverted from {public_path(run.get('source') or '') or 'another model'}.\n"
            header = {"base_model": _on_hub(run.get("source") or "")}
        else:
            root = run_directory.find_root(source)
            task = pipeline or model.head.replace("_", "-")
            header = _header(run, _scores(root), task, repository or public_path(files.absolute(root)))
            text += _training(run, os.path.basename(model.source)) + _results(root) + _limits(run)
    data = huggingface_hub.ModelCardData(
        license=license or None, library_name=library, pipeline_tag=pipeline or None, tags=tags, **header
    )
    code = "\n".join(use)
    text += f"\n## Use\n\n```python\n{code}\n```\n"
    text += f"\n## Made by\n\n```\n{public_command(command)}\n```\n" if command else ""
    return f"---\n{data.to_yaml()}\n---\n\n{text}"


def of_run(directory: str) -> str:
    """Returns the card of a fine-tuning run as Markdown, for its work directory."""
    run = run_directory.read_run(directory)
    model = run["config"]["model"]
    kind = model["model_type"]
    name = FAMILIES[kind].name if kind in FAMILIES else kind
    size = f"{counted(model['num_hidden_layers'], 'layer')} of {model['hidden_size']}"
    labels = f"\nLabels: {', '.join(run['labels'])}.\n" if run.get("labels") else ""
    title = f"# {run['config']['task']}, fine-tuned: {name}, {size}\n{labels}"
    return title + _training(run) + _results(run_directory.find_root(directory))


def _on_hub(source: str) -> str | None:
    """Returns the name of a model whose source is org/name@COMMIT."""
    return source.partition("@")[0] if "@" in source and hub.is_name(source) else None


def _header(run: Mapping[str, Any], scores: Mapping[str, float], task: str, name: str) -> dict[str, Any]:
    """Returns the card's header entries about a run; `task` and `name` are the model's on the hub."""
    config, origin = run["config"], run.get("origin", {})
    data = config.get("data") or {}
    # The evaluation file comes first: the scores are for its data set.
    given = (data.get("eval"), config.get("data_dir"), data.get("train"), *origin.get("data_sets", ()))
    found = [hub.DATA_NAME.fullmatch(each or "") for each in given]
    languages = [*origin.get("languages", ()), *(x.partition("accuracy_")[2] for x in scores)]
    header: dict[str, Any] = {
        "base_model": config["init_from"].partition("@")[0] if run.get("init_from_commit") else None,
        "datasets": list(dict.fromkeys(each["name"] for each in found if each)) or None,
        "language": [each for each in languages if re.fullmatch("[a-z]{2}", each)] or None,
    }
    if "task" not in config or not scores:
        return header
    held_out = found[0] if data.get("eval") else found[1]
    data_name = held_out["name"] if held_out else public_path(data.get("eval") or config["task"])
    results = [
        huggingface_hub.EvalResult(
            task_type=task,
            dataset_type=data_name,
            dataset_name=data_name,
            dataset_config=held_out["config"] if held_out else None,
            metric_type=_ON_HUB.get(metric, metric),
            metric_value=value,
        )
        for metric, value in scores.items()
    ]
    metrics = [result.metric_type for result in results]
    return header | {"model_name": name, "metrics": metrics, "eval_results": results}


def _limits(run: Mapping[str, Any]) -> str:
    config = run["config"]
    data = config.get("data") or {}
    length = config.get("max_seq_length") or (run.get("records") or {}).get("max_seq_length")
    named = ", ".join(run.get("origin", {}).get("data_sets", ()))
    trained_on = named or public_path(data.get("train") or config.get("data_dir") or data.get("dir") or "")
    if not (trained_on and length):
        return ""
    limits = f"trained on {trained_on}, with texts of at most {length} tokens"
    return f"\n## Limits\n\nThe model was {limits}; other data and longer texts are untested.\n"


def _usage(model: Model, name: str) -> tuple[str, Sequence[str]]:
    if model.is_sentence_encoder:
        return "sentence-transformers", [
            "from sentence_transformers import SentenceTransformer",
            "",
            f'model = SentenceTransformer("{name}")',
            'vectors = model.encode(["One text.", "Another one."])',
        ]
    auto = HEADS[model.head].auto_class
    return "transformers", [
        f"from transformers import AutoTokenizer, {auto}",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
        f'model = {auto}.from_pretrained("{name}")',
    ]


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = (f"| {' | '.join(map(str, cells))} |\n" for cells in (header, ["---"] * len(header), *rows))
    return f"\n## {title}\n\n{''.join(lines)}"


def _training(run: Mapping[str, Any], step: str = "") -> str:
    facts: dict[str, Any] = {"command": f"bert-jax {run['command']}", "weights of step": step}
    for name, field in _FACTS.items():
        value: Any = run["config"]
        for part in field.split("."):
            value = (value or {}).get(part)
        facts[name] = public_path(value) if isinstance(value, str) else value
    if run.get("init_from_commit"):
        facts["started from"] = f"{run['config']['init_from'].partition('@')[0]}@{run['init_from_commit']}"
    facts["records"] = (run.get("records") or {}).get("fingerprint")
    facts |= {f"{split} file, SHA-256": digest for split, digest in (run.get("files") or {}).items()}
    # A seed of 0 is meaningful; any other fact that is 0 or empty is skipped.
    rows = [fact for fact in facts.items() if fact[1] or fact == ("seed", 0)]
    command = run.get("command_line")
    return _table("Training", ("", ""), rows) + (
        f"\n```\n{public_command(command)}\n```\n" if command else ""
    )


def _scores(root: str) -> dict[str, float]:
    """Returns the scores of the best step of a run, or of its newest evaluation."""
    best, metrics = os.path.join(root, "best.json"), os.path.join(root, "metrics.jsonl")
    scores: Mapping[str, Any] = {}
    if files.exists(best):
        scores = json_files.read(best, {"scores": dict})["scores"]
    else:
        for row in json_files.read_lines(metrics):
            if row.get("kind") == "eval":
                scores = {name: value for name, value in row.items() if name not in ("kind", "step")}
    return {name: value for name, value in scores.items() if json_files.is_of(value, float)}


def _results(root: str) -> str:
    rows = [(name, f"{value:.4g}") for name, value in _scores(root).items()]
    return _table("Held-out results", ("metric", "value"), rows) if rows else ""


def public_path(path: str) -> str:
    """Returns a path in a form that can be published, without the local folders of a machine.

    A relative path is unchanged. An absolute path, a path that leaves the working directory, and a URL are
    shortened to their last component; a checkpoint to its work directory and step. A prefix of the path is
    kept: the field in `FIELD=PATH`, and the `tfds:` of a prepared data set.
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


def check_name(repository: str) -> None:
    """Raises UserError if this cannot be the name of a model on the hub, USER/NAME."""
    try:
        hub_utils.validate_repo_id(repository)
        _, _ = repository.split("/")
    except ValueError:
        raise UserError(f"--push_to={repository}: expected USER/NAME, a valid name on the hub") from None


def push(folder: str, repository: str) -> str:
    """Uploads a folder to the hub with the token of `hf auth login` and returns its URL."""
    api = huggingface_hub.HfApi()
    try:
        url = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:  # errors of huggingface_hub, of its HTTP library, or of the network
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"--push_to={repository}: cannot be uploaded ({reason})") from error
    return str(url)
