"""The server on a real port: vectors, words and predictions as the commands give them; refusals; the end."""

import base64
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest
from support import growth, xla_flags
from support.embeddings import tiny_model
from support.fine_tuned import make_run
from support.pretrained import vocabulary  # noqa: F401

from bert_jax import convert
from bert_jax.commands import serve
from bert_jax.convert.formats import work_directory
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.inference.embedding import Embedder
from bert_jax.inference.fill_mask import MaskFiller
from bert_jax.inference.predictor import Predictor

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

FIELDS = {"/embed": "texts", "/fill-mask": "texts", "/predict": "rows"}
TEXTS = ["the cat is big", "a dog", "one two three"]


class Running:
    """A server in a process of its own."""

    def __init__(self, *flags):
        command = [sys.executable, "-m", "bert_jax", "serve", "--port=0", *map(str, flags)]
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": xla_flags.with_devices(1),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "PYTHONPATH": os.getcwd(),
        }
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.lines, self.port = [], 0
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"ready: http://127.0.0.1:(\d+) answers (.*)", line):
                self.port, self.paths = int(found[1]), found[2]
                break
        assert self.port, "".join(self.lines)
        threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True).start()

    def ask(self, path, body=None, method=None, headers=None):
        """Returns the status, and what the answer holds."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        content = json.dumps(body) if isinstance(body, dict | list) else body
        connection.request(method or ("GET" if body is None else "POST"), path, content, headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, json.loads(text) if "json" in answer.headers["content-type"] else text

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, vocabulary):  # noqa: F811
    folder = tmp_path_factory.mktemp("served")
    model = tiny_model(folder, ("encoder", "mlm"), "masked_lm")
    sentence = SentenceVectors("cls", True, 16, {"query": "the cat "})
    work_directory.FORMAT.write(model.replace(sentence=sentence), folder / "model")
    run = make_run(folder / "run", vocabulary, "classification", ("a", "b"), text_a="text", label="label")
    return folder / "model", run


@pytest.fixture(scope="module")
def server(folders):
    running = Running(
        *(f"--model={folders[0]}", f"--workdir={folders[1]}", "--queue=20", "--body_bytes=2000"),
        "--batch_size=4",
    )
    yield running
    if running.process.poll() is None:
        running.process.kill()


def test_compiling_shows_its_progress(monkeypatch, capsys):
    monkeypatch.setattr("bert_jax.io.progress._SECONDS_BETWEEN_LINES", 0.0)

    def warm_up(most, on_program):
        for done in range(most + 1):
            on_program(done, most)
        return most

    assert serve._warm_up(types.SimpleNamespace(name="embed", warm_up=warm_up), 3) == 3
    assert "compiling /embed: 2 of 3 programs" in capsys.readouterr().err


@pytest.mark.long
def test_a_checkpoint_is_loaded_once(folders, monkeypatch):
    loaded, load = [], convert.load
    monkeypatch.setattr(convert, "load", lambda path, **options: loaded.append(path) or load(path, **options))
    flags = types.SimpleNamespace(model=folders[0], workdir="", dtype="float32", batch_size=1)
    embed, fill = serve._services(flags)
    assert (embed.name, fill.name, loaded) == ("embed", "fill-mask", [folders[0]])
    placed, shared = fill.filler._engine._params, embed.embedder.engine._params
    assert all(placed[name] is shared[name] for name in shared)


@pytest.mark.long
def test_vectors_are_those_of_embed(server, folders):
    embedder = Embedder(convert.load(folders[0], log=lambda line: None), log=lambda line: None)
    status, found = server.ask("/embed", {"texts": TEXTS})
    assert status == 200
    np.testing.assert_allclose(found["vectors"], embedder.embed(TEXTS), atol=1e-5)
    found = server.ask("/embed", {"texts": TEXTS, "prompt": "query"})[1]
    np.testing.assert_allclose(found["vectors"], embedder.embed(TEXTS, "the cat "), atol=1e-5)


@pytest.mark.long
def test_the_paths_of_the_server_are_logged(server):
    assert server.paths.split(", ") == [
        *("/health", "/metrics", "/embed", "/fill-mask", "/predict", "/v1/embeddings", "/v1/models"),
    ]


def test_the_embeddings_of_openai(server, folders):
    embedder = Embedder(convert.load(folders[0], log=lambda line: None), log=lambda line: None)
    expected = embedder.embed(TEXTS)
    status, found = server.ask("/v1/embeddings", {"input": TEXTS, "model": "any"})
    assert status == 200 and found["object"] == "list" and found["model"] == "model"
    assert [one["index"] for one in found["data"]] == [0, 1, 2]
    np.testing.assert_allclose([one["embedding"] for one in found["data"]], expected, atol=1e-5)
    tokens = sum(len(row.token_ids) for row in embedder.rows(TEXTS))
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    body = {"input": TEXTS[0], "model": "any", "user": "x", "dimensions": 4, "encoding_format": "base64"}
    (one,) = server.ask("/v1/embeddings", body)[1]["data"]
    vector = np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
    np.testing.assert_allclose(vector, expected[0, :4] / np.linalg.norm(expected[0, :4]), atol=1e-5)
    unset = {"input": TEXTS[0], "dimensions": None, "encoding_format": None}
    assert len(server.ask("/v1/embeddings", unset)[1]["data"][0]["embedding"]) == 16
    assert server.ask("/v1/models")[1]["data"][0]["id"] == "model"


@pytest.mark.long
def test_words_for_masks(server, folders):
    text = "the [MASK] is [MASK] ."
    status, found = server.ask("/fill-mask", {"texts": [text], "top": 2})
    expected = MaskFiller(str(folders[0]), lambda line: None)([text], 2)[0]
    assert status == 200 and len(found["results"][0]) == 2
    for mask, candidates in zip(found["results"][0], expected, strict=True):
        assert [one["token"] for one in mask] == [one.token for one in candidates]
        assert [one["probability"] for one in mask] == pytest.approx(
            [x.probability for x in candidates], abs=1e-5
        )


def test_predictions_are_those_of_predict(server, folders):
    rows = ["a red cat", {"text": "one dog", "id": "x"}, "two"]
    status, found = server.ask("/predict", {"rows": rows})
    assert status == 200
    predictor = Predictor(str(folders[1]), log=lambda line: None)
    reader = predictor.task.line_reader()
    given = [reader.from_text(row) if isinstance(row, str) else reader.from_object(row) for row in rows]
    expected = [*predictor.predict(reader.examples(list(enumerate(given, 1)))).records()]
    assert [one["prediction"] for one in found["predictions"]] == [one["prediction"] for one in expected]
    assert [one.get("id") for one in found["predictions"]] == [None, "x", None]
    for one, other in zip(found["predictions"], expected, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


@pytest.mark.parametrize(
    "path, body, status, message",
    [
        ("/embed", "{", 400, "the request is no JSON"),
        ("/embed", "[" * 900, 400, "the request is no JSON"),
        ("/embed", b"\xff\xfe", 400, "the request is no JSON"),
        ("/embed", ["a"], 400, "expected a JSON object"),
        ("/embed", {}, 400, "expected a list of one or more items in 'texts'"),
        ("/embed", {"texts": []}, 400, "expected a list of one or more items in 'texts'"),
        ("/embed", {"texts": ["a", 3]}, 400, "texts[1]: expected a text, found int"),
        ("/embed", {"texts": ["a"], "prompt": "title"}, 400, "the prompts of the model are query"),
        ("/embed", {"texts": ["a"], "prefix": ""}, 400, "unknown field 'prefix': expected texts or prompt"),
        ("/embed", {"texts": ["a"] * 21}, 413, "a request has at most 20 items, found 21"),
        ("/embed", {"texts": ["a" * 3000]}, 413, "a request has at most 2,000 bytes"),
        ("/v1/embeddings", {"input": "a", "dimensions": 17}, 400, "dimensions: expected 1 to 16"),
        ("/v1/embeddings", {"input": "a", "dimensions": True}, 400, "dimensions: expected 1 to 16"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "x"}, 400, "expected float or base64"),
        ("/v1/embeddings", {"input": []}, 400, "one or more items in 'input'"),
        ("/v1/embeddings", {"input": ["a", 5]}, 400, "input[1]: expected a text"),
        ("/fill-mask", {"texts": ["a cat"]}, 400, "no [MASK] in 'a cat'"),
        ("/fill-mask", {"texts": ["[MASK] " * 60]}, 400, "'[MASK] [MASK]"),
        ("/fill-mask", {"texts": ["[MASK]"], "top": 0}, 400, "top: expected 1 to 50"),
        ("/fill-mask", {"texts": ["[MASK]"], "top_k": 2}, 400, "'top_k': expected texts or top"),
        ("/predict", {"rows": [{"other": "a"}]}, 400, "rows[0]: "),
        ("/predict", {"rows": ["a"], "": 1}, 400, "unknown field '': expected rows"),
        ("/predict", {"rows": ["a\tb"]}, 400, "rows[0]: "),
        ("/embed/", {"texts": ["a"]}, 404, "/embed/: expected one of /health, /metrics, /embed, "),
        ("/none", {"texts": ["a"]}, 404, "/none: expected one of /health, /metrics, /embed, /fill-mask, "),
    ],
)  # fmt: skip
def test_what_is_malformed_or_too_large_is_refused(server, path, body, status, message):
    found = server.ask(path, body, "POST")
    assert found[0] == status and message in found[1]["error"]["message"]


def test_other_methods_and_lengths_that_lie(server):
    status, found = server.ask("/embed")
    assert (status, found["error"]["message"]) == (405, "/embed: expected POST, found GET")
    assert server.ask("/embed", '{"texts": ["a"]}', headers={"content-length": "99999999"})[0] == 413


def test_a_client_that_hangs_up_is_no_failure_of_the_server(server):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b'POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"texts"')
    for _ in range(50):
        counted = server.ask("/metrics")[1]
        if 'status="499"' in counted:
            break
        time.sleep(0.1)
    assert 'status="499"' in counted and 'status="500"' not in counted


def test_many_requests_at_once_lose_nothing_and_are_counted(server, folders):
    embedder = Embedder(convert.load(folders[0], log=lambda line: None), log=lambda line: None)
    texts = [f"{color} {animal}" for color in ("red", "blue", "green") for animal in ("cat", "dog", "bird")]
    expected, wrong = embedder.embed(texts), []

    def ask(worker):
        for number in range(10):
            i = (worker + number) % len(texts)
            status, found = server.ask("/embed", {"texts": [texts[i]]})
            if status != 200 or not np.allclose(found["vectors"][0], expected[i], atol=1e-5):
                wrong.append((status, i))

    threads = [threading.Thread(target=ask, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert server.ask("/health")[1] == {
        "status": "ok", "model": "model", "services": ["embed", "fill-mask", "predict"]
    }  # fmt: skip
    metrics = server.ask("/metrics")[1]
    counted = int(re.search(r'requests_total\{path="/embed",status="200"\} (\d+)', metrics)[1])
    items = int(re.search(r'bert_jax_items_total\{service="embed"\} (\d+)', metrics)[1])
    batches = int(re.search(r'bert_jax_batches_total\{service="embed"\} (\d+)', metrics)[1])
    assert counted >= 80 and items >= 80 and batches <= items
    assert re.search(r'request_seconds_bucket\{path="/embed",le="\+Inf"\} (\d+)', metrics)


@pytest.mark.long
def test_the_state_is_answered_during_any_request(folders):
    running = Running(f"--model={folders[0]}", f"--workdir={folders[1]}")
    units = ("\u0301\u0323", "the cat ", "x" * 50 + " ")
    requests = [(path, field, unit) for unit in units for path, field in FIELDS.items()]
    answers, slowest = [], 0.0

    def ask():
        for path, field, unit in requests:
            text = growth.repeated(unit, (1 << 20) // len(unit.encode()) * len(unit) - 100)
            body = json.dumps({field: ["[MASK] " + text]}, ensure_ascii=False).encode()
            answers.append((path, unit, running.ask(path, body)[0]))

    thread = threading.Thread(target=ask)
    thread.start()
    while thread.is_alive():
        began = time.monotonic()
        assert running.ask("/health")[0] == 200
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.05)
    assert running.stop() == 0
    assert len(answers) == len(requests) and {status for *_, status in answers} == {200, 400}
    assert slowest < 1, slowest


@pytest.mark.long
def test_sigterm_finishes_what_is_being_answered(folders):
    running = Running(f"--model={folders[0]}")
    assert running.ask("/predict", {"rows": ["a"]})[0] == 404
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(running.ask("/embed", {"texts": TEXTS * 30})[0]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    while running.ask("/metrics")[1].find('items_total{service="embed"} 0') >= 0 and len(answers) < 4:
        pass
    assert running.stop() == 0
    for thread in threads:
        thread.join()
    assert answers == [200] * 4
    running.process.wait()
    assert any("stopped" in line for line in running.lines)


def test_batches_of_predictions_are_those_of_batch_size(folders):
    flags = types.SimpleNamespace(model=None, workdir=str(folders[1]), dtype="auto", batch_size=24)
    (service,) = serve._services(flags)
    assert service.predictor.batch_size == 24 and service.predictor.config.batch_size == 16


@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "serve needs --model=DIR, --workdir=DIR of a fine-tuned run, or both"),
        (["--model=x", "--queue=0"], "--queue=0: expected 1 or more"),
        (["--model=x", "--port=-1"], "--port=-1: expected 0 or more"),
        (["--model=x", "--port=70000"], "cannot be listened on"),
    ],
)
def test_mistakes(flags, message, capsys):
    from bert_jax import cli

    assert cli.main(["serve", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("host, reason", [("127.0.0.1", "Address already in use"), ("a..b", ".+")])
def test_an_address_is_refused_before_a_model_is_read(host, reason, capsys):
    from bert_jax import cli

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--model=none", f"--host={host}", f"--port={port}"]) == 2
    what = rf"--host={re.escape(host)} --port={port}: cannot be listened on \({reason}\); choose another"
    assert re.fullmatch(rf"bert-jax: error: {what}\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    "path, name",
    [
        ("runs/mini", "mini"),
        ("runs/mini/", "mini"),
        ("runs/mini/best/100", "mini/best/100"),
        ("gs://bucket/runs/mini/checkpoints/7", "mini/checkpoints/7"),
        (".", "here"),
    ],
)
def test_the_name_of_the_model(path, name, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert serve._model_name(path) == name


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_an_address_of_ipv6_is_that_of_a_url(monkeypatch):
    from bert_jax.serving import app

    lines = []

    def log(line):
        lines.append(line)
        if line.startswith("ready:"):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(serve, "log", log)
    server = app.Server([], "model")
    assert serve._serve(server.app, "::1", 0, server.paths) == 0
    assert re.fullmatch(r"ready: http://\[::1\]:\d+ answers /health, /metrics", lines[0])
