"""The model card of an exported model: what it is, what it was trained on, how well it does, its use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from etils import epath

from bert_jax import workdir
from bert_jax.convert import huggingface, native
from bert_jax.convert.model import Model
from bert_jax.errors import UserError

_PIPELINES = {
    "none": "feature-extraction",
    "pretraining": "fill-mask",
    "masked_lm": "fill-mask",
    "sequence_classification": "text-classification",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
}


def make(model: Model, source: str, command: str) -> str:
    """Markdown with a YAML head, as Hugging Face shows it.

    Args:
        source: the path that the model was read from; a run's figures come from it.
        command: the command that made the folder.
    """
    head = ["---", "library_name: transformers", "tags:", "- bert", "- bert_jax"]
    if model.head in _PIPELINES:
        head.append(f"pipeline_tag: {_PIPELINES[model.head]}")
    config = model.config
    parameters = sum(array.size for array in model.params.values())
    lines = [
        *head,
        "---",
        "",
        f"# BERT, {config.num_hidden_layers} layers of {config.hidden_size}",
        "",
        f"{parameters:,} parameters: {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, feed-forward size {config.intermediate_size}, "
        f"{config.max_position_embeddings} positions, {config.vocab_size:,} embeddings"
        + (f", {'uncased' if model.tokenizer.lower_case else 'cased'}." if model.tokenizer else "."),
    ]
    if model.labels:
        lines += ["", f"Labels: {', '.join(model.labels)}."]
    if native.is_native(source):
        lines += _describe_run(source)
    auto = huggingface.AUTO_CLASSES[model.head]
    lines += [
        "",
        "## Use",
        "",
        "```python",
        f"from transformers import AutoTokenizer, {auto}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("DIR")',
        f'model = {auto}.from_pretrained("DIR")',
        "```",
        "",
        "## Made by",
        "",
        "```",
        command,
        "```",
        "",
    ]
    return "\n".join(lines)


def _describe_run(path: str) -> list[str]:
    run = workdir.read_run(path)
    config = run["config"]
    if run["command"] == native.COMMAND:
        return ["", f"Converted from {run.get('source') or 'another model'}."]
    lines = ["", "## Training", "", "| | |", "|---|---|"]
    facts: dict[str, Any] = {"command": f"bert-jax {run['command']}"}
    facts["task"] = config.get("task")
    facts["steps"] = config.get("steps")
    facts["batch size"] = config.get("batch_size")
    optimizer = config.get("optimizer") or {}
    facts["optimizer"] = optimizer.get("name")
    facts["learning rate"] = optimizer.get("learning_rate")
    records = run.get("records") or {}
    facts["records"] = records.get("fingerprint")
    facts["tokens a row"] = records.get("max_seq_length")
    for split, digest in (run.get("files") or {}).items():
        facts[f"{split} file, SHA-256"] = digest
    facts["started from"] = config.get("init_from")
    lines += [f"| {name} | {value} |" for name, value in facts.items() if value]
    scores = _scores(workdir.find_root(path))
    if scores:
        lines += ["", "## Held-out results", "", "| metric | value |", "|---|---|"]
        lines += [f"| {name} | {value:.4g} |" for name, value in scores.items()]
    return lines


def _scores(root: epath.Path) -> Mapping[str, float]:
    """The best scores of a fine-tuning, else the last evaluation of a run; none where there was none."""
    best = root / "best.json"
    if best.exists():
        return json.loads(best.read_text())["scores"]
    metrics = root / "metrics.jsonl"
    if not metrics.exists():
        return {}
    last: Mapping[str, float] = {}
    for line in metrics.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the end of a run that was killed
        if row.get("kind") == "eval":
            last = {name: value for name, value in row.items() if name not in ("kind", "step")}
    return last


def check_push(repository: str) -> None:
    """Raises UserError unless `push` can be tried."""
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise UserError(f"--push_to={repository}: expected USER/NAME")
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise UserError("--push_to needs huggingface_hub; pip install huggingface_hub") from error


def push(folder: str, repository: str) -> str:
    """Uploads a folder to the hub, under the token of `hf auth login`; returns its address.

    Raises:
        UserError: the hub refuses.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    try:
        url = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:  # its own kinds, those of its HTTP library, and those of the network
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"--push_to={repository}: {reason}; {folder} is written, and can be pushed again"
        ) from error
    return str(url)
