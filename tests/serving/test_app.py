"""The HTTP interface over services without a model, on a real socket."""

import contextlib
import http.client
import json
import socket
import threading
import time

import pytest

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from bert_jax.serving import app  # noqa: E402


class Echo:
    """Returns its items, each batch when `release` is set."""

    name, field = "predict", "rows"

    def __init__(self):
        self.release, self.seen = threading.Event(), []
        self.release.set()

    def parse(self, item):
        return item

    def compute(self, items):
        self.seen.extend(items)
        self.release.wait(10)
        return items


@contextlib.contextmanager
def serving(service, **limits):
    """Yields the port of a server in a thread."""
    server = uvicorn.Server(
        uvicorn.Config(app.Server([service], "model", **limits).app, port=0, log_level="critical")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def ask(port, path, body=None):
    """Returns the status, the type of the content and the content."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
    answer = connection.getresponse()
    found = answer.status, answer.headers["content-type"], answer.read().decode()
    connection.close()
    return found


def wait_for(port, line):
    """Waits until the metrics have a line."""
    for _ in range(200):
        if line in ask(port, "/metrics")[2].splitlines():
            return
        time.sleep(0.02)
    raise AssertionError(ask(port, "/metrics")[2])


def send(port, rows):
    """Returns the connection of a request whose answer nobody has read."""
    body = json.dumps({"rows": rows}).encode()
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return connection


def test_items_of_clients_that_hang_up_are_not_computed_and_leave_their_places():
    service = Echo()
    service.release.clear()
    with serving(service, most=2, limit=4) as port:
        computed = send(port, ["a"])
        while not service.seen:
            time.sleep(0.01)
        waiting = send(port, ["b", "c", "d"])
        wait_for(port, 'bert_jax_waiting{service="predict"} 3')
        assert ask(port, "/predict", {"rows": ["e", "f"]})[0] == 503
        computed.close(), waiting.close()
        wait_for(port, 'bert_jax_requests_total{path="/predict",status="499"} 2')
        wait_for(port, 'bert_jax_waiting{service="predict"} 0')
        threading.Timer(0.2, service.release.set).start()
        assert ask(port, "/predict", {"rows": ["e", "f", "g", "h"]})[0] == 200
        assert service.seen == ["a", "e", "f", "g", "h"]
        wait_for(port, 'bert_jax_requests_total{path="/predict",status="200"} 1')


def test_a_result_that_is_no_json_is_an_error_of_the_server(caplog):
    with serving(Echo()) as port:
        status, kind, content = ask(port, "/predict", {"rows": [{"probability": float("nan")}]})
        assert (status, kind) == (500, "application/json")
        assert json.loads(content)["error"]["message"] == "the server failed; its log has the reason"
        wait_for(port, 'bert_jax_requests_total{path="/predict",status="500"} 1')
    assert "/predict failed" in caplog.text and "not JSON compliant" in caplog.text
