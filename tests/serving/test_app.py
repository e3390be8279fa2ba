"""The HTTP interface over services without a model, on a real socket."""

import contextlib
import http.client
import json
import select
import socket
import threading
import time

import numpy as np
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from bert_jax.serving import app, batching, connections, services


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
def serving(service, grace=None, **limits):
    """Yields the port of a server in a thread, which waits `grace` seconds for requests at its end."""
    options = dict(port=0, log_level="critical", timeout_graceful_shutdown=grace)
    server = connections.Server(app.Server([service], "model", **limits).app, **options)
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


@pytest.mark.long
def test_a_request_that_stops_to_arrive_is_refused_and_delays_no_end(monkeypatch):
    monkeypatch.setattr(app, "_STALLED_SECONDS", 0.5)
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n"
    with serving(Echo()) as port:
        slow = socket.create_connection(("127.0.0.1", port))
        slow.settimeout(20)
        for part in (head, b'{"rows"', b": [", b'"a"]}'):  # longer than the limit, but never without a byte
            slow.sendall(part)
            time.sleep(0.2)
        assert slow.recv(1000).startswith(b"HTTP/1.1 200 ")
        slow.close()
        stalled = socket.create_connection(("127.0.0.1", port))
        stalled.settimeout(20)
        stalled.sendall(head + b"{")
        answer = b"".join(iter(lambda: stalled.recv(1000), b""))  # until the server closes the connection
        assert answer.startswith(b"HTTP/1.1 408 ") and answer.endswith(
            b'{"error":{"message":"no more of the request arrived within 0.5 s"}}'
        )
        wait_for(port, 'bert_jax_requests_total{path="/predict",status="408"} 1')
        stalled = socket.create_connection(("127.0.0.1", port))
        stalled.sendall(head)
        time.sleep(0.1)
        began = time.monotonic()
    assert time.monotonic() - began < 10  # the server has stopped, without its time limit of any request


@pytest.mark.long
def test_a_stop_that_has_waited_long_enough_answers_what_is_not_computed():
    service = Echo()
    service.release.clear()
    with serving(service, grace=1) as port:
        waiting = send(port, ["a"])
        while not service.seen:
            time.sleep(0.01)
        threading.Timer(3, service.release.set).start()
    answer = waiting.recv(1000)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b'{"error":{"message":"the server stops before it has an answer"}}')


def test_a_path_with_a_slash_at_its_end_is_answered_with_the_known_ones():
    with serving(Echo()) as port:
        status, kind, content = ask(port, "/predict/", {"rows": ["a"]})
    assert (status, kind) == (404, "application/json")
    assert json.loads(content)["error"]["message"] == "/predict/: expected one of /health, /metrics, /predict"


def test_a_result_that_is_no_json_is_an_error_of_the_server(caplog):
    with serving(Echo()) as port:
        status, kind, content = ask(port, "/predict", {"rows": [{"probability": float("nan")}]})
        assert (status, kind) == (500, "application/json")
        assert json.loads(content)["error"]["message"] == "the server failed; its log has the reason"
        wait_for(port, 'bert_jax_requests_total{path="/predict",status="500"} 1')
    assert "/predict failed" in caplog.text and "not JSON compliant" in caplog.text


def test_lists_of_numbers_are_exact_and_short():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    ends = np.array([0, -0.0, 1, -1, 0.1, 1e-45, 3.4028235e38, 1 - 2**-24], np.float32)
    for values in (bits[np.isfinite(bits)], ends, rng.normal(0, 0.05, 100_000).astype(np.float32)):
        found = services.as_list(values)
        assert np.array_equal(np.array(found, np.float32).view(np.uint32), values.view(np.uint32))
    assert all(float(f"{x:.9g}") == x for x in found)


def test_other_requests_do_not_wait_while_an_answer_is_written(monkeypatch):
    began, end = threading.Event(), threading.Event()

    def slow(vector):
        began.set()
        assert end.wait(5)
        return vector.tolist()

    class Vectors(Echo):
        def compute(self, items):
            return [np.zeros(2, np.float32)] * len(items)

    monkeypatch.setattr(app, "as_list", slow)
    answers = []
    with serving(Vectors()) as port:
        asking = threading.Thread(target=lambda: answers.append(ask(port, "/predict", {"rows": ["a"]})))
        asking.start()
        assert began.wait(10) and ask(port, "/health")[0] == 200
        end.set()
        asking.join()
    assert answers == [(200, "application/json", '{"predictions":[[0.0,0.0]]}')]


def read_all(connection):
    """Returns the bytes that a server sends until it closes the connection."""
    connection.settimeout(20)
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_a_batcher_that_ends_is_reported_and_its_requests_fail(monkeypatch):
    async def fails(self):
        raise ValueError

    monkeypatch.setattr(batching.Batcher, "_run", fails)
    with serving(Echo()) as port:
        status, _, content = ask(port, "/health")
        assert status == 503 and "predict" in content
        assert ask(port, "/predict", {"rows": ["a"]})[0] == 500


def test_too_few_results_fail_their_request_only():
    class Few(Echo):
        def compute(self, items):
            return [item for item in items if item != "a"]

    with serving(Few()) as port:
        assert ask(port, "/predict", {"rows": ["a"]})[0] == 500
        assert ask(port, "/predict", {"rows": ["b"]})[0] == 200
        assert ask(port, "/health")[0] == 200


@pytest.mark.parametrize("path", [b"POST /predict", b"GET /health"])
def test_a_length_together_with_chunks_is_an_error(path):
    chunked = b'Transfer-Encoding: chunked\r\n\r\nc\r\n{"rows":[1]}\r\n0\r\n\r\n'
    with serving(Echo()) as port:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n" + chunked)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_connections_without_complete_headers_are_closed(monkeypatch, before):
    monkeypatch.setattr(connections, "_HEADER_SECONDS", 0.5)
    with serving(Echo()) as port:
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        began = time.monotonic()
        for connection in slow:
            connection.sendall(before + b"GET /health HTTP/1.1\r\nX: ")
        while time.monotonic() - began < 5:
            try:
                for connection in slow:
                    connection.sendall(b"x")
            except OSError:
                break
            time.sleep(0.1)
        else:
            raise AssertionError("the connections stay open")
        assert ask(port, "/health")[0] == 200


def test_new_connections_take_the_place_of_waiting_ones(monkeypatch):
    monkeypatch.setattr(connections.resource, "getrlimit", lambda limit: (20, 20))
    service = Echo()
    service.release.clear()
    with serving(service) as port:
        busy = [send(port, ["a"]) for _ in range(3)]
        wait_for(port, 'bert_jax_items_total{service="predict"} 0')
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        assert ask(port, "/health")[0] == 200
        assert len(select.select(slow, [], [], 1)[0]) >= 40  # they were closed
        service.release.set()
        for connection in busy:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_no_request_that_was_sent_before_the_end_is_reset():
    failed, last = [], []

    def client(port):
        """Sends requests on one connection until an answer says that the server closes it."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        answer = None
        while not answer or answer.headers["connection"] != "close":
            try:
                connection.request("POST", "/predict", '{"rows": ["a"]}')
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200
            except Exception as error:
                failed.append(error)
                return
        last.append(connection)

    service = Echo()
    with serving(service) as port:
        idle = socket.create_connection(("127.0.0.1", port))
        threads = [threading.Thread(target=client, args=(port,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        service.release.clear()  # the next requests are being answered at the end
        time.sleep(0.1)
        threading.Timer(1, service.release.set).start()
        new = [send(port, ["a"]) for _ in range(20)]  # the server may not have accepted these
    for thread in threads:
        thread.join()
    assert not failed and len(last) == 16
    for connection in new:
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 200 ") and b"connection: close" in answer.lower()
    assert read_all(idle) == b""


def test_requests_that_the_server_has_not_read_at_its_end_are_answered(monkeypatch):
    began = threading.Event()

    async def block(self, request):
        began.set()
        time.sleep(0.5)
        return {}

    monkeypatch.setattr(app.Server, "_health", block)
    with serving(Echo()) as port:
        blocking = socket.create_connection(("127.0.0.1", port))
        blocking.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert began.wait(10)
        unread = [send(port, ["a"]) for _ in range(50)]
    for connection in unread:
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 200 ") and b"connection: close" in answer.lower()
