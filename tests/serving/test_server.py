"""The server on a real socket: answers, errors, limits and shutdown, without models and with tiny models."""

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest
from support import xla_flags
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

from bert_jax.serving import server

TEXTS = ["the cat is big", "a dog", "one two three"]
QUIET = {"log": lambda line: None}


@contextlib.contextmanager
def serving(*services, **limits):
    """Yields the port of a server in a thread."""
    running = server.HttpServer(server.Server(services, "model", **limits), port=0, log_level="critical")
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        while not running.started:
            time.sleep(0.01)
        yield running.servers[0].sockets[0].getsockname()[1]
    finally:
        running.should_exit = True
        thread.join()


def ask(port, path, body=None, method=None):
    """Returns the status and the content of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    content = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
    connection.request(method or ("GET" if body is None else "POST"), path, content)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, json.loads(text) if "json" in answer.headers["content-type"] else text


@pytest.fixture(scope="module")
def folders(tmp_path_factory, vocabulary):  # noqa: F811
    folder = tmp_path_factory.mktemp("served")
    model = tiny_model(folder, ("encoder", "mlm"), "masked_lm")
    sentence = SentenceVectors("cls", True, 16, {"query": "the cat "})
    work_directory.FORMAT.write(model.replace(sentence=sentence), folder / "model")
    run = make_run(folder / "run", vocabulary, "classification", ("a", "b"), text_a="text", label="label")
    return str(folder / "model"), str(run)


@pytest.fixture(scope="module")
def port(folders):
    flags = types.SimpleNamespace(model=folders[0], workdir=folders[1], dtype="float32", batch_size=4)
    with serving(*serve._services(flags), most=4, limit=20, body_bytes=2000) as port:
        yield port


@pytest.fixture(scope="module")
def embedder(folders):
    return Embedder(convert.load(folders[0], **QUIET), dtype="float32", **QUIET)


def test_vectors(port, embedder):
    status, found = ask(port, "/embed", {"texts": TEXTS})
    assert status == 200
    np.testing.assert_allclose(found["vectors"], embedder.embed(TEXTS), atol=1e-5)
    found = ask(port, "/embed", {"texts": TEXTS, "prompt": "query"})[1]
    np.testing.assert_allclose(found["vectors"], embedder.embed(TEXTS, "the cat "), atol=1e-5)


def test_the_embeddings_of_openai(port, embedder):
    expected = embedder.embed(TEXTS)
    status, found = ask(port, "/v1/embeddings", {"input": TEXTS, "model": "any"})
    assert status == 200 and found["object"] == "list" and found["model"] == "model"
    assert [each["index"] for each in found["data"]] == [0, 1, 2]
    np.testing.assert_allclose([each["embedding"] for each in found["data"]], expected, atol=1e-5)
    tokens = sum(len(row.token_ids) for row in embedder.rows(TEXTS))
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    body = {"input": TEXTS[0], "model": "any", "user": "x", "dimensions": 4, "encoding_format": "base64"}
    (each,) = ask(port, "/v1/embeddings", body)[1]["data"]
    vector = np.frombuffer(base64.b64decode(each["embedding"]), "<f4")
    np.testing.assert_allclose(vector, expected[0, :4] / np.linalg.norm(expected[0, :4]), atol=1e-5)
    assert ask(port, "/v1/models")[1]["data"][0]["id"] == "model"


def test_words_for_masks(port, folders):
    text = "the [MASK] is [MASK] ."
    status, found = ask(port, "/fill-mask", {"texts": [text], "top": 2})
    expected = MaskFiller(folders[0], QUIET["log"], "float32")([text], 2)[0]
    assert status == 200 and len(found["results"][0]) == 2
    for mask, candidates in zip(found["results"][0], expected, strict=True):
        assert [each["token"] for each in mask] == [each.token for each in candidates]
        probabilities = [each.probability for each in candidates]
        assert [each["probability"] for each in mask] == pytest.approx(probabilities, abs=1e-5)


def test_predictions(port, folders):
    rows = ["a red cat", {"text": "one dog", "id": "x"}, "two"]
    status, found = ask(port, "/predict", {"rows": rows})
    assert status == 200
    expected = Predictor(folders[1], dtype="float32", **QUIET).predict_rows(rows)
    for each, other in zip(found["predictions"], expected, strict=True):
        assert (each["prediction"], each.get("id")) == (other["prediction"], other.get("id"))
        assert each["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


@pytest.mark.parametrize(
    "path, body, status, message",
    [
        ("/embed", "[" * 900, 400, "expected a JSON object"),
        ("/embed", {"texts": []}, 400, "expected a list of one or more items in 'texts'"),
        ("/embed", {"texts": ["a", 3]}, 400, "texts[1]: expected a text, found int"),
        ("/embed", {"texts": ["a"], "prompt": "title"}, 400, "prompts of the model are query"),
        ("/embed", {"texts": ["a"] * 21}, 413, "a request has at most 20 items"),
        ("/embed", {"texts": ["a" * 3000]}, 413, "a request has at most 2,000 bytes"),
        ("/v1/embeddings", {"input": "a", "dimensions": 17}, 400, "dimensions: expected 1 to 16"),
        ("/fill-mask", {"texts": ["a cat"]}, 400, "[MASK]"),
        ("/fill-mask", {"texts": ["[MASK]"], "top_k": 2}, 400, "'top_k': expected texts or top"),
        ("/predict", {"rows": [{"other": "a"}]}, 400, "rows[0]: "),
        ("/embed/", {"texts": ["a"]}, 404, "/health, /metrics, /embed"),
    ],
)  # fmt: skip
def test_what_is_malformed_or_too_large_is_an_error(port, path, body, status, message):
    found = ask(port, path, body, "POST")
    assert found[0] == status and message in found[1]["error"]["message"]


def test_many_requests_at_once_lose_nothing_and_are_counted(port, embedder):
    texts = [f"{color} {animal}" for color in ("red", "blue", "green") for animal in ("cat", "dog", "bird")]
    expected, wrong = embedder.embed(texts), []

    def worker(number):
        for i in range(10):
            place = (number + i) % len(texts)
            status, found = ask(port, "/embed", {"texts": [texts[place]]})
            if status != 200 or not np.allclose(found["vectors"][0], expected[place], atol=1e-5):
                wrong.append((status, place))

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert ask(port, "/health")[1]["services"] == ["embed", "fill-mask", "predict"]
    metrics = ask(port, "/metrics")[1]
    items = int(re.search(r'bert_jax_items_total\{service="embed"\} (\d+)', metrics)[1])
    batches = int(re.search(r'bert_jax_batches_total\{service="embed"\} (\d+)', metrics)[1])
    assert items >= 80 and batches <= items


def started(*flags):
    """Starts `bert-jax serve` in a separate process; returns it once it is ready, and its port."""
    command = [sys.executable, "-m", "bert_jax", "serve", "--port=0", *flags]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": xla_flags.with_devices(1),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "PYTHONPATH": os.getcwd(),
    }
    process, lines = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment), []
    for line in process.stderr:
        lines.append(line)
        if ready := re.search(r"ready: http://127.0.0.1:(\d+) answers", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, int(ready[1])
    raise AssertionError("".join(lines))


@pytest.mark.long
def test_sigterm_finishes_what_is_being_answered(folders):
    process, port = started(f"--model={folders[0]}")
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(port, "/embed", {"texts": TEXTS * 30})[0]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    while 'items_total{service="embed"} 0' in ask(port, "/metrics")[1] and len(answers) < 4:
        pass
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    for thread in threads:
        thread.join()
    assert answers == [200] * 4
