"""A Hugging Face hub of folders, instead of a server, for `huggingface_hub` in this process.

A model is a folder ROOT/ORG/NAME, a data set is below ROOT/datasets, and NAME@parquet is the branch in which
the hub keeps a Parquet copy.
"""

import hashlib
import inspect
import shutil
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors, utils

from bert_jax import hub

_SIGNATURES = {
    "snapshot_download": inspect.signature(huggingface_hub.snapshot_download),
    "create_repo": inspect.signature(huggingface_hub.HfApi().create_repo),
    "upload_folder": inspect.signature(huggingface_hub.HfApi().upload_folder),
}


def _missing(kind, message):
    functions = {"__init__": Exception.__init__, "__str__": Exception.__str__}
    return type(kind.__name__, (kind,), functions)(message)


class Folders:
    """Attributes: downloaded, the names of all downloaded files; created, the created repositories."""

    url = "https://hub.test"

    def __init__(self, root, cache):
        self.root, self._cache, self.downloaded, self.created = Path(root), Path(cache), [], []

    def commit(self, folder):
        """The hash of the repository's content, which stands for its commit."""
        digest = hashlib.sha1()
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
        return digest.hexdigest()

    def snapshot_download(self, name, **options):
        given = _SIGNATURES["snapshot_download"].bind(name, **options).arguments
        kind, revision = given.get("repo_type") or "models", given.get("revision")
        snapshots = self._cache / f"{kind}--{name.replace('/', '--')}" / "snapshots"
        if revision and (snapshots / revision).is_dir():
            return str(snapshots / revision)
        folder = self.root / ("datasets" if kind == "dataset" else "") / name
        if not folder.is_dir():
            raise _missing(errors.RepositoryNotFoundError, "Repository not found")
        converted = folder.with_name(f"{folder.name}@parquet")
        if revision == "refs/convert/parquet" and converted.is_dir():
            folder = converted
        elif revision not in (None, "main", self.commit(folder)):
            raise _missing(errors.RevisionNotFoundError, "Revision not found")
        names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        patterns = {x: given.get(x) for x in ("allow_patterns", "ignore_patterns")}
        snapshot = snapshots / self.commit(folder)
        for each in utils.filter_repo_objects(names, **patterns):
            (snapshot / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / each, snapshot / each)
            self.downloaded.append(each)
        return str(snapshot)

    def create_repo(self, *args, **options):
        self.created.append(_SIGNATURES["create_repo"].bind(*args, **options).arguments["repo_id"])
        return f"{self.url}/{self.created[-1]}"

    def upload_folder(self, **options):
        given = _SIGNATURES["upload_folder"].bind(**options).arguments
        shutil.copytree(given["folder_path"], self.root / given["repo_id"], dirs_exist_ok=True)


def use(root, cache, monkeypatch):
    """Lets this process download from the folders below `root` into a cache, and upload to them."""
    folders = Folders(root, cache)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", folders.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: folders)
    hub._snapshot.cache_clear()
    return folders
