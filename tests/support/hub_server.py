"""A local server that speaks the API of the Hugging Face hub, for folders of models and data sets.

A repository is a folder ROOT/ORG/NAME; data sets are below ROOT/datasets, and NAME@parquet is the branch in
which the hub keeps a Parquet copy. `huggingface_hub` is pointed at
the server by HF_ENDPOINT. Uploads are commits of `upload_folder` with files in the request.
"""

import base64
import contextlib
import functools
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from pathlib import Path

import huggingface_hub

from bert_jax import hub

_API = re.compile(
    r"/api/(models|datasets)/(?P<name>[^/]+(?:/[^/]+)??)(?:/(?P<verb>revision|tree|preupload|commit)/(?P<revision>[^/?]+)(?:/.*)?)?"
)
_FILE = re.compile(r"/(?P<kind>datasets/)?(?P<name>.+?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


class Hub:
    """Attributes: url, the endpoint; requests, the paths that were asked for; stop_after, bytes of all
    files after which connections are cut (0: never)."""

    def __init__(self, root):
        self.root, self.requests, self.stop_after, self.sent = Path(root), [], 0, 0
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_HEAD(self):
                hub.answer(self, body=False)

            def do_GET(self):
                hub.answer(self)

            def do_POST(self):
                hub.take(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def folder(self, kind, name):
        return self.root / ("datasets" if kind.startswith("datasets") else "") / name

    def commit(self, folder):
        """The hash of the repository's content, which stands for its commit."""
        digest = hashlib.sha1()
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
        return digest.hexdigest()

    def answer(self, request, body=True):
        path = urllib.parse.urlparse(request.path).path
        self.requests.append(path)
        if found := _API.fullmatch(path):
            return self._api(request, found)
        if found := _FILE.fullmatch(path):
            return self._file(request, found, body)
        return self._send(request, 404, b"")

    def _known(self, request, kind, name, revision):
        revision = revision and urllib.parse.unquote(revision)
        folder = self.folder(kind, name)
        if not folder.is_dir():
            self._send(request, 401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"})
            return None
        converted = folder.with_name(f"{folder.name}@parquet")
        if converted.is_dir() and revision in ("refs/convert/parquet", self.commit(converted)):
            return converted
        if revision not in (None, "main", self.commit(folder)):
            self._send(request, 404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "none"})
            return None
        return folder

    def _api(self, request, found):
        folder = self._known(request, found[1], found["name"], found["revision"])
        if folder is None:
            return
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in paths]
        if found["verb"] == "tree":
            answer = [
                {"type": "file", "path": name, "size": path.stat().st_size, "oid": self._etag(path)}
                for name, path in zip(names, paths, strict=True)
            ]
        else:
            answer = {
                "id": found["name"], "sha": self.commit(folder), "private": False, "tags": [],
                "siblings": [{"rfilename": name} for name in names],
            }  # fmt: skip
        self._send(request, 200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _etag(self, path):
        return hashlib.sha1(path.read_bytes()).hexdigest()

    def _file(self, request, found, body):
        folder = self._known(request, found["kind"] or "", found["name"], found["revision"])
        if folder is None:
            return
        path = folder / urllib.parse.unquote(found["file"])
        headers = {"X-Repo-Commit": self.commit(folder)}
        if not path.is_file():
            return self._send(request, 404, b"", headers | {"X-Error-Code": "EntryNotFound"})
        content = path.read_bytes()
        headers |= {"ETag": f'"{self._etag(path)}"', "Accept-Ranges": "bytes"}
        first = re.fullmatch(r"bytes=(\d+)-.*", request.headers.get("Range", ""))
        status = 200
        if first:
            status, start = 206, int(first[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content = content[start:]
        self._send(request, status, content, headers, body)

    def _send(self, request, status, content, headers=None, body=True):
        request.send_response(status)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if not body:
            return
        if self.stop_after and self.sent + len(content) > self.stop_after:
            request.wfile.write(content[: max(0, self.stop_after - self.sent)])
            request.close_connection = True
            return
        self.sent += len(content)
        request.wfile.write(content)

    def take(self, request):
        """Creates a repository, or commits files to it."""
        path = urllib.parse.urlparse(request.path).path
        self.requests.append(path)
        data = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        kind = {"Content-Type": "application/json"}
        if path == "/api/repos/create":
            asked = json.loads(data)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.folder("", name).mkdir(parents=True, exist_ok=True)
            return self._send(request, 200, json.dumps({"url": f"{self.url}/{name}"}).encode(), kind)
        if path == "/api/validate-yaml":
            return self._send(request, 200, b'{"errors": [], "warnings": []}', kind)
        found = _API.fullmatch(path)
        folder = self.folder(found[1], found["name"])
        if found["verb"] == "preupload":
            modes = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(data)["files"]
            ]
            return self._send(request, 200, json.dumps({"files": modes}).encode(), kind)
        for line in map(json.loads, data.splitlines()):
            if line["key"] == "file":
                target = folder / line["value"]["path"]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(base64.b64decode(line["value"]["content"]))
        commit = self.commit(folder)
        answer = {
            "commitUrl": f"{self.url}/{found['name']}/commit/{commit}",
            "commitOid": commit,
            "success": True,
        }
        return self._send(request, 200, json.dumps(answer).encode(), kind)


@contextlib.contextmanager
def serving(root):
    """Serves the repositories below a folder."""
    hub = Hub(root)
    thread = threading.Thread(target=hub.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


def use(served, cache, monkeypatch):
    """Lets this process download from a server into an empty cache, and upload to it."""
    options = {"endpoint": served.url, "cache_dir": cache}
    download = huggingface_hub.snapshot_download
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    api = functools.partial(huggingface_hub.HfApi, endpoint=served.url)
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    monkeypatch.setattr(hub.huggingface_hub, "snapshot_download", functools.partial(download, **options))
    hub._snapshot_folder.cache_clear()
    hub._download.cache_clear()
