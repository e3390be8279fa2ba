"""Names of models and data sets on the Hugging Face hub: downloads them into the hub's own cache.

HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and HF_ENDPOINT work as in huggingface_hub.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from etils import epy

from bert_jax.errors import UserError
from bert_jax.io import files

with epy.lazy_imports():
    import huggingface_hub

# "org/name", or only the name for the first models on the hub, such as "bert-base-uncased"; then a branch, a
# tag or a commit.
_NAME = re.compile(r"(?P<name>(?:\w[\w.-]*/)?\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?")

# Weights of other frameworks are not downloaded, and files that are programs or pickles are never read.
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
_OTHER_FILES = ("onnx/*", "openvino/*", "coreml/*", "checkpoint-*", "runs/*")


def is_name(path: files.PathLike) -> bool:
    """True for a name on the hub, as ORG/NAME[@REVISION], unless a file or folder has this name."""
    return isinstance(path, str) and bool(_NAME.fullmatch(path)) and not files.exists(path)


def local_path(path: files.PathLike) -> files.PathLike:
    """Returns the folder of a model in the hub's cache, downloaded if needed; another path unchanged."""
    return _download(os.fspath(path)) if is_name(path) else path


def _download(path: str) -> str:
    matched = _NAME.fullmatch(path)
    assert matched
    return _snapshot(path, "model", matched["name"], matched["revision"], _FILES, _OTHER_FILES)


@functools.cache  # so that all files of a model come from one commit
def _snapshot(
    shown: str,
    kind: str,
    name: str,
    revision: str | None,
    patterns: tuple[str, ...],
    ignored: tuple[str, ...] = (),
) -> str:
    """Returns the folder of the files that match patterns, downloaded if needed."""
    chosen, others = list(patterns), list(ignored)
    try:
        return huggingface_hub.snapshot_download(
            name, repo_type=kind, revision=revision, allow_patterns=chosen, ignore_patterns=others
        )
    except Exception as error:  # errors of huggingface_hub, of its HTTP library, or of the network
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{shown}: no such path, and it cannot be loaded from the Hugging Face hub ({reason})"
        ) from error


# Data sets

DATA = "hf:"  # the prefix of data sets on the hub: hf:ORG/NAME, hf:ORG/NAME:CONFIG, either with @REVISION
DATA_NAME = re.compile(
    r"hf:(?P<name>(?:\w[\w.-]*/)?\w[\w.-]*)(?::(?P<config>[^@]+))?(?:@(?P<revision>[\w./-]+))?"
)
# The branch in which the hub stores a Parquet copy of data sets that are scripts, such as conll2003.
_PARQUET_BRANCH = "refs/convert/parquet"
# The names of a split in data sets.
_SPLITS = {"dev": ("validation", "dev", "val", "valid")}


class DataSet(NamedTuple):
    """A data set that has a short name: its source on the hub and its fine-tuning task, "" for a corpus.

    `columns` are {field of `config.data`: column}, `rows` the numbers of training and evaluation rows or
    millions of documents, and `splits` {split: its name in the data set}, if the names differ.
    """

    source: str
    task: str
    columns: Mapping[str, str] = MappingProxyType({})
    rows: str = ""
    license: str = ""
    splits: Mapping[str, str] = MappingProxyType({})


_GLUE = {
    "cola": "8,551 + 1,043", "sst2": "67,349 + 872", "mrpc": "3,668 + 408", "stsb": "5,749 + 1,500",
    "qqp": "363,846 + 40,430", "mnli": "392,702 + 9,815", "qnli": "104,743 + 5,463", "rte": "2,490 + 277",
    "wnli": "635 + 71",
}  # fmt: skip
_ENDINGS = "ending0,ending1,ending2,ending3"
_SWAG = {"text_a": "sent1", "text_b": "sent2", "label": "label", "choices": _ENDINGS}
_CONLL = {"text_a": "tokens", "label": "ner_tags", "id": "id"}
_IMDB = {"text_a": "text", "label": "label"}
_CC_BY_SA = "CC BY-SA 4.0"
DATA_SETS: Mapping[str, DataSet] = {
    **{name: DataSet("hf:nyu-mll/glue", name, {}, rows) for name, rows in _GLUE.items()},
    "squad": DataSet("hf:rajpurkar/squad", "squad", {}, "87,599 + 10,570", _CC_BY_SA),
    "squad2": DataSet("hf:rajpurkar/squad_v2", "squad2", {}, "130,319 + 11,873", _CC_BY_SA),
    "swag": DataSet("hf:allenai/swag:regular", "swag", _SWAG, "73,546 + 20,006"),
    "conll2003": DataSet("hf:eriktks/conll2003", "conll", _CONLL, "14,041 + 3,250", "for research (Reuters)"),
    "imdb": DataSet("hf:stanfordnlp/imdb", "classification", _IMDB, "25,000 + 25,000", "", {"dev": "test"}),
    "xnli": DataSet("hf:facebook/xnli", "xnli", {}, "392,702 + 15 x 2,490", "CC BY-NC 4.0"),
    "wikipedia": DataSet("hf:wikimedia/wikipedia:20231101.en", "", {}, "6.4", "CC BY-SA 3.0"),
    "bookcorpus": DataSet("hf:bookcorpus/bookcorpus", "", {}, "74.0"),
}
_BY_SOURCE = {each.source: each for each in DATA_SETS.values() if each.task not in _GLUE}


class NoSplit(UserError):
    """Raised for a data set that lacks a split."""


def data_set(name: str) -> DataSet | None:
    """Returns the data set with this short name, unless a file has it, or this source in `DATA_SETS`."""
    found = DATA_SETS.get(name)
    if found and not files.exists(name):
        return found
    known = _BY_SOURCE.get(name.partition("@")[0])
    return known and known._replace(source=name)


def data_files(name: str, split: str) -> list[str]:
    """Returns the Parquet files of a split of a data set, in the hub's cache, downloaded if needed.

    `name` is hf:ORG/NAME, or hf:ORG/NAME:CONFIG for one of its configurations; @REVISION may follow. `split`
    is "train", "dev" for the validation set under any of its names, or the name of another split. UserError
    if there is no such data set, configuration or split, or it cannot be loaded.
    """
    matched = DATA_NAME.fullmatch(name)
    if not matched:
        raise UserError(f"{name}: expected hf:ORG/NAME or hf:ORG/NAME:CONFIG")
    known_set = _BY_SOURCE.get(name.partition("@")[0])
    split = known_set.splits.get(split, split) if known_set else split
    splits = _SPLITS.get(split, (split,))
    config, revision = matched["config"] or "", matched["revision"]
    snapshot = functools.partial(_data_snapshot, name, matched["name"])
    patterns = _patterns(name, config, snapshot(revision, ["README.md"]))
    if patterns:
        known = [each for each in splits if each in patterns]
        if not known:
            raise NoSplit(f"{name}: no split {split!r}; expected one of {', '.join(patterns)}")
        found = [each for each in snapshot(revision, patterns[known[0]]) if each.endswith(".parquet")]
    else:
        folders = [f"{config}/"] if config else ["data/", ""]
        found = snapshot(revision, [f"{folder}{each}[-.]*parquet" for folder in folders for each in splits])
    if not found and not revision:
        found = snapshot(_PARQUET_BRANCH, [f"{config or '*'}/{each}/*.parquet" for each in splits])
    if not patterns and len(places := {_split_of(each) for each in found}) > 1:
        raise UserError(f"{name} has several data sets; expected one of {', '.join(sorted(places))}")
    if not found:
        raise NoSplit(f"{name}: no Parquet files of the split {split!r}")
    return found


def _split_of(path: str) -> str:
    """Returns the folder and the split of a Parquet file whose path names the split, "data/train"."""
    inside = path.partition("/snapshots/")[2].partition("/")[2]
    folder, _, file = inside.rpartition("/")
    return folder if file[0].isdigit() else f"{folder}/{re.split('[-.]', file)[0]}".lstrip("/")


def _patterns(shown: str, config: str, card: list[str]) -> dict[str, list[str]]:
    """Returns {split: patterns of its files} from the file of a data set's card; {} if there are none."""
    if not card:
        return {}
    text = Path(card[0]).read_text("utf-8")
    metadata = huggingface_hub.RepoCard(text, ignore_metadata_errors=True).data.to_dict()
    configs = {each.get("config_name", "default"): each for each in metadata.get("configs") or []}
    if not configs:
        return {}
    default = [each for each, content in configs.items() if content.get("default")] or list(configs)
    config = config or (default[0] if len(default) == 1 else "")
    if config not in configs:
        raise UserError(f"{shown}: expected hf:ORG/NAME:CONFIG, where CONFIG is one of {', '.join(configs)}")
    files_of = configs[config].get("data_files") or []
    if isinstance(files_of, str):
        files_of = [{"split": "train", "path": files_of}]
    return {
        each["split"]: [each["path"]] if isinstance(each["path"], str) else list(each["path"])
        for each in files_of
    }


def _data_snapshot(shown: str, name: str, revision: str | None, patterns: list[str]) -> list[str]:
    """Returns the files of a data set that match patterns, downloaded if needed."""
    try:
        root = Path(_snapshot(shown, "dataset", name, revision, tuple(patterns)))
    except UserError as error:
        missing = huggingface_hub.errors.RevisionNotFoundError
        if revision == _PARQUET_BRANCH and isinstance(error.__cause__, missing):
            return []
        raise
    return sorted({str(path) for pattern in patterns for path in root.glob(pattern)})
