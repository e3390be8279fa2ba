"""`bert-jax serve` under load on loopback: 1,000 requests from 32 connections, and requests that are refused.

    python benchmarks/serving.py --model=DIR --texts=texts.txt

Each request asks /embed for the vector of one text, and each connection sends its next request when it has an
answer; the first turn is thrown away. Requests that are malformed, too large or of an unknown path have to be
refused with a status of 4xx, and SIGTERM has to end the server, with exit code 0, after all requests that it
has accepted have their answers. Prints a markdown table; fails if an answer is missing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np

REFUSED = {
    "not JSON": ("/embed", b"{"),
    "no texts": ("/embed", b"{}"),
    "a number in place of a text": ("/embed", b'{"texts": [1]}'),
    "2 MiB": ("/embed", json.dumps({"texts": ["a" * (2 << 20)]}).encode()),
    "an unknown path": ("/nothing", b"{}"),
}


class Server:
    """A server in a process of its own, on a free port of loopback."""

    def __init__(self, model: str):
        began = time.monotonic()
        command = [sys.executable, "-m", "bert_jax", "serve", f"--model={model}", "--port=0"]
        self.process = subprocess.Popen(
            command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr
        for line in self.process.stderr:
            if found := re.search(r"ready: http://([\d.]+):(\d+)", line):
                self.address = found[1], int(found[2])
                break
        self.start_seconds = time.monotonic() - began
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=60)


def ask(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, bytes]:
    """Returns the status and the body of an answer."""
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def load(server: Server, texts: list[str], requests: int, connections: int) -> tuple[np.ndarray, float]:
    """Returns the seconds of each request, and those of all."""
    numbers, seconds = itertools.count(), np.full(requests, np.nan)

    def send() -> None:
        connection = server.connect()
        while (number := next(numbers)) < requests:
            body = json.dumps({"texts": [texts[number % len(texts)]]}).encode()
            began = time.monotonic()
            status, answer = ask(connection, "/embed", body)
            seconds[number] = time.monotonic() - began
            assert status == 200 and len(json.loads(answer)["vectors"]) == 1, answer
        connection.close()

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(connections) as pool:
        for done in [pool.submit(send) for _ in range(connections)]:
            done.result()
    assert not np.isnan(seconds).any()
    return seconds, time.monotonic() - began


def stop_under_load(server: Server, texts: list[str], connections: int) -> tuple[int, int]:
    """Sends SIGTERM while each connection waits for an answer; returns the number of answers and the code."""

    def send(number: int) -> bool:
        connection = server.connect()
        body = json.dumps({"texts": texts[number : number + 8]}).encode()
        return ask(connection, "/embed", body)[0] == 200

    with concurrent.futures.ThreadPoolExecutor(connections) as pool:
        waiting = [pool.submit(send, number) for number in range(connections)]
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        answers = sum(done.result() for done in waiting)
    return answers, server.process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True, help="a file of one text per line")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    with open(args.texts, encoding="utf-8") as file:
        texts = [line.strip() for line in file if line.strip()]
    server = Server(args.model)
    try:
        load(server, texts, args.requests, args.connections)
        print(f"Ready after {server.start_seconds:.1f} s.\n")
        print("| turn | answers | requests/s | p50, ms | p99, ms | longest, ms |\n|---|---|---|---|---|---|")
        for turn in range(args.turns):
            seconds, whole = load(server, texts, args.requests, args.connections)
            middle, late = np.percentile(seconds, (50, 99)) * 1000
            rate = args.requests / whole
            print(
                f"| {turn + 1} | {len(seconds):,} | {rate:,.0f} | {middle:.0f} | {late:.0f} "
                f"| {seconds.max() * 1000:.0f} |"
            )
        print("\n| request | status |\n|---|---|")
        for name, (path, body) in REFUSED.items():
            status = ask(server.connect(), path, body)[0]
            print(f"| {name} | {status} |")
            assert 400 <= status < 500
        answers, code = stop_under_load(server, texts, args.connections)
        waiting = f"{args.connections} requests of 8 texts waited"
        print(f"\nSIGTERM while {waiting}: {answers} answers, exit code {code}.")
        assert answers == args.connections and code == 0
    finally:
        if server.process.poll() is None:
            server.process.kill()


if __name__ == "__main__":
    main()
