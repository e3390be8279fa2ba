"""Times the steps around a save to a bucket that answers slowly: an emulator on this machine, with a delay.

    PYTHONPATH=$PWD:$PWD/tests python benchmarks/slow_store.py --seconds=5

Each request takes so long, and uploads 1 GiB/s. Prints the median step, the longest ones, and save_seconds.
"""

import argparse
import http.server
import itertools
import json
import statistics
import tempfile
import threading
import time

from gcp_storage_emulator import server
from support import processes, remote

from bert_jax import cli
from bert_jax.io import files
from bert_jax.training.metrics import MetricsWriter

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=5.0)
parser.add_argument("--every", type=int, default=2000, help="the step that is saved, half of all")
arguments = parser.parse_args()
handle, at_step, lock, times = server.Router.handle, MetricsWriter.at_step, threading.Lock(), [(0, 0.0)]


def delayed(router, method):
    if 0 < times[-1][0] < 2 * arguments.every - 10:  # not at the start and the end
        size = int(router._request_handler.headers.get("Content-Length") or 0)
        time.sleep(arguments.seconds + size / 2**30)
    with lock:  # the emulator is not for several threads
        handle(router, method)


def timed(writer, step):
    times.append((step, time.monotonic()))
    at_step(writer, step)


server.server.HTTPServer = http.server.ThreadingHTTPServer
server.Router.handle, MetricsWriter.at_step = delayed, timed
with tempfile.TemporaryDirectory() as folder, remote.bucket() as url:
    records, every = processes.write_records(f"{folder}/records"), arguments.every
    fields = {"steps": 2 * every, "checkpoint.every": every, "eval.every": 0, "log_every": 100}
    assert cli.main(processes.command(f"{url}/run", records, **fields)) == 0
    lines = [json.loads(line) for line in files.read(f"{url}/run/metrics.jsonl").splitlines()]
pairs = itertools.pairwise(times[2:])  # without compilation
steps = sorted((after - before, step) for (step, before), (_, after) in pairs)
print(f"median step {1000 * statistics.median(seconds for seconds, _ in steps):.1f} ms")
print("longest", [(step, round(seconds, 2)) for seconds, step in steps[:-8:-1]])
print("save_seconds", [(line["step"], line["save_seconds"]) for line in lines if line.get("save_seconds")])
