"""Runs processes in turn within a time limit, and measures the CPU use of other processes meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import measure

BUSY = 0.05  # fraction of the CPUs that other processes may use during a measurement
_LOOK_SECONDS = 1.0
_LEAST_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class Turn:
    """A measuring process.

    Attributes:
        title: a description for the log.
        command: its command line.
        limit: seconds after which it is stopped.
        stays: whether it is given --in_turn, so that it compiles once for all rounds; see `measure`.
        whole: if the whole process is timed, the `what` and the `side` of the result.
        environment: environment variables that differ from this process.
        empties: a directory that is deleted before the run, such as a cache.
    """

    title: str
    command: Sequence[str]
    limit: float = 3600.0
    stays: bool = False
    whole: Mapping[str, Any] | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    empties: Path | None = None


class Load:
    """The CPU use of other processes since this object was created; available on Linux only.

    Args:
        process: the id of a running process that does not count as another process.
    """

    def __init__(self, process: int | None = None):
        self._process = process
        self._began = time.monotonic(), _busy_seconds(), _own_seconds(process)

    def others(self) -> float | None:
        """Returns the fraction of all CPUs, 0 to 1, or None if it is unknown."""
        began, busy, own = self._began
        now = _busy_seconds()
        if now is None or busy is None:
            return None
        capacity = max(1e-3, time.monotonic() - began) * (os.cpu_count() or 1)
        return max(0.0, (now - busy) - (_own_seconds(self._process) - own)) / capacity


def _busy_seconds() -> float | None:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, *others = map(int, file.readline().split()[1:9])
    except OSError:
        return None
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def _own_seconds(process: int | None = None) -> float:
    """Returns the CPU seconds of this process, its ended children and one running process."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used) + _seconds_of(process)


def _seconds_of(process: int | None) -> float:
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


class _Process:
    """A process whose output is read while it runs."""

    def __init__(self, turn: Turn):
        self.turn = turn
        self.text = ""
        self._process = subprocess.Popen(
            [*map(str, turn.command), *["--in_turn"] * turn.stays],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | dict(turn.environment),
            start_new_session=True,  # so that its child processes are stopped with it
        )
        self.id = self._process.pid
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        if not turn.stays:
            self._process.stdin.close()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, mark: str | None, limit: float) -> tuple[list[dict[str, Any]], str]:
        """Returns the results up to the line `mark` or the end of the output, and "done" or an error text.

        A process that does not get there within `limit` seconds is stopped.
        """
        end, found = time.monotonic() + limit, []
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self.stop()
                return found, f"stopped after {limit:.0f} s"
            if line is None:
                state = self._process.wait()
                return found, "done" if mark is None and state == 0 else f"failed ({_reason(self.text)})"
            self.text += line
            if line.strip() == mark:
                return found, "done"
            if line.startswith(measure.PREFIX):
                found.append(json.loads(line.removeprefix(measure.PREFIX)))

    def go(self) -> None:
        """Starts the next turn of the process; `until` reports a process that has ended."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.id, signal.SIGKILL)
        self._process.wait()


class Session:
    """Runs turns and keeps their results.

    Args:
        seconds: time after which no process is started; a process is stopped after a third of it.
        output: a directory for log.txt and results.jsonl. Each result is appended immediately.
        patience: the maximum wait before each turn, in seconds, for other processes to become idle.
    """

    def __init__(self, seconds: float, output: Path, patience: float = 60.0):
        output.mkdir(parents=True, exist_ok=True)
        self._end, self._most = time.monotonic() + seconds, seconds / 3
        self._patience = patience
        self._log = open(output / "log.txt", "a", encoding="utf-8")
        self._results = output / "results.jsonl"

    def run(self, turns: Sequence[Turn], rounds: int, first: int = 0) -> list[dict[str, Any]]:
        """Returns the results of turns; in each round the sides run one after the other.

        If a process fails or is stopped, its earlier results are included, and the others continue.

        Args:
            turns: the turns to run; `stays` must be the same for all.
            rounds: the number of turns of each process.
            first: the number of the first round.
        """
        if turns and turns[0].stays:
            return self._alternate(turns, rounds, first)
        return [
            one for number in range(rounds) for turn in turns for one in self._alone(turn, first + number)
        ]

    def _alone(self, turn: Turn, number: int) -> list[dict[str, Any]]:
        self._wait_for_quiet()
        if (limit := self._limit(turn)) is None:
            return []
        if turn.empties:
            shutil.rmtree(turn.empties, ignore_errors=True)
        load, began = Load(), time.monotonic()
        process = _Process(turn)
        try:
            found, state = process.until(None, limit)
        finally:
            process.stop()
        seconds = time.monotonic() - began
        self._note(process)
        if turn.whole and state == "done":
            found = [{**turn.whole, "unit": "s", "best": seconds, "median": seconds}]
        return self._keep(turn.title, found, number, state, seconds, load.others())

    def _alternate(self, turns: Sequence[Turn], rounds: int, first: int) -> list[dict[str, Any]]:
        ready: list[_Process] = []
        started: list[_Process] = []
        results: list[dict[str, Any]] = []
        try:
            for turn in turns:
                if (limit := self._limit(turn)) is None:
                    continue
                began = time.monotonic()
                started.append(process := _Process(turn))
                _, state = process.until(measure.READY, limit)
                self._say(turn.title, "ready" if state == "done" else state, time.monotonic() - began)
                if state == "done":
                    ready.append(process)
            for number in range(first, first + rounds):
                for process in list(ready):
                    self._wait_for_quiet()
                    if (limit := self._limit(process.turn, least=0.0)) is None:
                        continue
                    load, began = Load(process.id), time.monotonic()
                    process.go()
                    found, state = process.until(measure.DONE, limit)
                    seconds = time.monotonic() - began
                    title = f"{process.turn.title}, round {number}"
                    results += self._keep(title, found, number, state, seconds, load.others())
                    if state != "done":
                        ready.remove(process)
        finally:
            for process in started:
                process.stop()
                self._note(process)
        return results

    def _limit(self, turn: Turn, least: float = _LEAST_SECONDS) -> float | None:
        """Returns the time limit of a process in seconds; None if the time is up."""
        left = self._end - time.monotonic()
        if left <= min(turn.limit, least):
            print(f"- {turn.title}: skipped, no time left", file=sys.stderr, flush=True)
            return None
        return min(turn.limit, self._most, left)

    def _keep(self, title, found, number, state, seconds, others) -> list[dict[str, Any]]:
        self._say(title, state, seconds, others)
        found = [one | {"round": number, "others": others} for one in found]
        with open(self._results, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(one) + "\n" for one in found)
        return found

    def _say(self, title: str, state: str, seconds: float, others: float | None = None) -> None:
        busy = f", others used {others:.0%} of the processors" if others and others > BUSY else ""
        print(f"- {title}: {state}, {seconds:.0f} s{busy}", file=sys.stderr, flush=True)

    def _note(self, process: _Process) -> None:
        self._log.write(f"\n$ {' '.join(map(str, process.turn.command))}\n{process.text}")
        self._log.flush()

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
