"""Runs processes in turn within the time there is, and says how much of the machine others used meanwhile."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import measure

BUSY = 0.05  # share of the machine's processors that others may use beside a measurement
_LOOK_SECONDS = 1.0
_LEAST_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class Turn:
    """A process that measures.

    Attributes:
        title: what it does, for the log.
        command: its command line.
        limit: seconds after which it is stopped.
        whole: if its whole process is what is measured, the `what` and the `side` of the result.
        environment: variables that differ from this process's.
        empties: a directory that is deleted before, such as a cache.
    """

    title: str
    command: Sequence[str]
    limit: float = 3600.0
    whole: Mapping[str, Any] | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    empties: Path | None = None


class Load:
    """What other processes use of the processors since it was made, as Linux counts; None elsewhere."""

    def __init__(self):
        self._began = time.monotonic(), _busy_seconds(), _own_seconds()

    def others(self) -> float | None:
        """Returns the share of all processors, 0 to 1."""
        began, busy, own = self._began
        now = _busy_seconds()
        if now is None or busy is None:
            return None
        capacity = max(1e-3, time.monotonic() - began) * (os.cpu_count() or 1)
        return max(0.0, (now - busy) - (_own_seconds() - own)) / capacity


def _busy_seconds() -> float | None:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, *others = map(int, file.readline().split()[1:9])
    except OSError:
        return None
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


class Session:
    """Runs turns and keeps their results.

    Args:
        seconds: after which nothing more is started; a process is stopped after a fifth of them.
        output: a directory for log.txt, and results.jsonl, to which each result is added at once.
        patience: seconds to wait at most, before each turn, until other processes are quiet.
    """

    def __init__(self, seconds: float, output: Path, patience: float = 60.0):
        output.mkdir(parents=True, exist_ok=True)
        self._end, self._most = time.monotonic() + seconds, seconds / 5
        self._patience = patience
        self._log = open(output / "log.txt", "a", encoding="utf-8")
        self._results = output / "results.jsonl"

    def run(self, turn: Turn, round_number: int) -> list[dict[str, Any]]:
        """Returns the results of a process, those before it failed or was stopped included."""
        self._wait_for_quiet()
        left = self._end - time.monotonic()
        if left < min(turn.limit, _LEAST_SECONDS):
            print(f"- {turn.title}: left out, the time is up", file=sys.stderr, flush=True)
            return []
        if turn.empties:
            shutil.rmtree(turn.empties, ignore_errors=True)
        self._log.write(f"\n$ {' '.join(map(str, turn.command))}\n")
        load, began = Load(), time.monotonic()
        text, state = self._process(turn, min(turn.limit, self._most, left))
        seconds, others = time.monotonic() - began, load.others()
        self._log.write(text)
        self._log.flush()
        busy = f", others used {others:.0%} of the processors" if others and others > BUSY else ""
        print(f"- {turn.title}: {state}, {seconds:.0f} s{busy}", file=sys.stderr, flush=True)
        found = [
            json.loads(line.removeprefix(measure.PREFIX))
            for line in text.splitlines()
            if line.startswith(measure.PREFIX)
        ]
        if turn.whole and state == "done":
            found = [{**turn.whole, "unit": "s", "best": seconds, "median": seconds}]
        found = [one | {"round": round_number, "others": others} for one in found]
        with open(self._results, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(one) + "\n" for one in found)
        return found

    def _process(self, turn: Turn, limit: float) -> tuple[str, str]:
        """Returns what a process printed, and how it ended."""
        try:
            done = subprocess.run(
                list(map(str, turn.command)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=limit,
                env=os.environ | dict(turn.environment),
            )
        except subprocess.TimeoutExpired as error:
            text = error.stdout or ""
            text = text if isinstance(text, str) else text.decode(errors="replace")
            return text, f"stopped after {limit:.0f} s"
        return done.stdout, "done" if done.returncode == 0 else f"failed ({_reason(done.stdout)})"

    def _wait_for_quiet(self) -> None:
        give_up = min(self._end, time.monotonic() + self._patience)
        while time.monotonic() < give_up:
            load = Load()
            time.sleep(_LOOK_SECONDS)
            if (load.others() or 0.0) <= BUSY:
                return


def _reason(text: str) -> str:
    for pattern in (r".*RESOURCE_EXHAUSTED.*", r".*OutOfMemoryError.*", r".*Error.*"):
        if found := re.findall(pattern, text):
            return found[-1].strip()[:120]
    return (text.strip().splitlines() or ["no output"])[-1][:120]
