"""Table and plot of the results of all sides."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turns import BUSY

OURS = "bert_jax"
_COLUMNS = (
    "what", "model", "rows x tokens", "rows, dropout, dtype", "program", "best (median)",
    "of the matrix rate", "bert_jax / this, round by round", "memory (GiB)", "compiled in",
)  # fmt: skip
_TITLES = {
    "matrix": "matrix product",
    "train": "pre-training step",
    "finetune": "fine-tuning step",
    "forward": "forward pass",
}
_NOTE = """\
The programs run in turn, each in a process that stays for all rounds. "best" is the best step of all
rounds, "median" the median of the rounds' medians. The ratio compares the best step of each round; above 1,
bert_jax is faster. Padded: one sequence per row, which fills half of the row on average. Packed: rows are
filled with such sequences, and are compared with a peer that pads each. The matrix rate is the best rate of
both programs for products of random matrices in this run. FLOPs are computed from the model's shape, for
whole rows. Memory is what the compiled program needs. "*": other processes used more than {busy:.0%} of the
processors."""


class Line:
    """All results of one case on one side, by round."""

    def __init__(self, results: Sequence[Mapping[str, Any]]):
        self.what, self.side, self.unit = (results[0][name] for name in ("what", "side", "unit"))
        self.rounds = {one["round"]: one for one in results}
        self.is_noisy = any((one.get("others") or 0.0) > BUSY for one in results)

    @property
    def is_duration(self) -> bool:
        return self.unit == "s"

    @property
    def best(self) -> float:
        return (min if self.is_duration else max)(one["best"] for one in self.rounds.values())

    @property
    def median(self) -> float:
        return statistics.median(one["median"] for one in self.rounds.values())

    def first(self, name: str) -> Any:
        return next((one[name] for one in self.rounds.values() if one.get(name) is not None), None)


def lines(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Line]]:
    """Returns {case as JSON: {side: line}}, in the order of the results."""
    found: dict[str, dict[str, list]] = {}
    for one in results:
        found.setdefault(json.dumps(one["what"]), {}).setdefault(one["side"], []).append(one)
    return {case: {side: Line(some) for side, some in sides.items()} for case, sides in found.items()}


def ratios(ours: Line, theirs: Line) -> list[float]:
    """Returns the speed of bert_jax divided by the peer's, for each round."""
    found = []
    for number in sorted(ours.rounds.keys() & theirs.rounds.keys()):
        mine, other = ours.rounds[number]["best"], theirs.rounds[number]["best"]
        found.append(other / mine if ours.is_duration else mine / other)
    return found


def beside(cases: Mapping[str, Mapping[str, Line]], case: str) -> list[tuple[Line, list[float]]]:
    """Returns each peer of a case with its ratios.

    Packed rows are compared with a peer's padded rows at the same dropout rates, or else at a single rate.
    """
    ours = cases[case].get(OURS)
    if ours is None:
        return []
    same = case
    if ours.what.get("rows") == "packed":
        padded = {**ours.what, "rows": "padded"}
        one_rate = {**padded, "attention_dropout": padded["dropout"]}
        same = next((key for key in map(json.dumps, (padded, one_rate)) if key in cases), "")
    peers = [line for side, line in cases.get(same, {}).items() if side != OURS]
    return [(line, found) for line in peers if (found := ratios(ours, line))]


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table in Markdown."""
    cases = lines(results)
    ceilings = _ceilings(cases)
    text = ["| " + " | ".join(_COLUMNS) + " |", "|---" * len(_COLUMNS) + "|"]
    for case, sides in cases.items():
        what = json.loads(case)
        ours = sides.get(OURS)
        flops = ours.first("flops") if ours else None
        for side, line in sides.items():
            ceiling = ceilings.get(what.get("dtype", ""))
            share = f"{line.best * flops / ceiling:.0%}" if flops and ceiling and not line.is_duration else ""
            ratio = ""
            if ours and side != OURS:
                ratio = ", ".join(f"{one:.2f}" for one in ratios(ours, line))
            elif what.get("rows") == "packed":
                ratio = "; ".join(
                    f"{peer.side}, padded: {', '.join(f'{one:.2f}' for one in found)}"
                    for peer, found in beside(cases, case)
                )
            compiled = line.first("compile_seconds")
            cells = [
                *_describe(what),
                f"**{side}**" if side == OURS else side,
                f"{_number(line.best, line.unit)} ({_number(line.median, line.unit)}) {_unit(line.unit)}"
                + "*" * line.is_noisy,
                share,
                ratio,
                _gib(line.first("memory_bytes")),
                f"{compiled:.1f} s" if compiled is not None else "",
            ]
            text.append("| " + " | ".join(cells) + " |")
    devices = {line.first("device"): None for sides in cases.values() for line in sides.values()}
    on = "".join(f"Device: {device}. " for device in devices if device and device != "cpu")
    return "\n".join([*text, "", on + _NOTE.format(busy=BUSY)])


def picture(results: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Plots the speed of bert_jax divided by each peer's: the median of the rounds, and each round."""
    from bert_jax.plots import figures

    cases = lines(results)
    bars = []
    for case in cases:
        what = json.loads(case)
        if what["kind"] != "matrix":
            label = ", ".join(filter(None, _describe(what)))
            bars += [(label, peer.side, found) for peer, found in beside(cases, case)]
    if not bars:
        return
    labels = list(dict.fromkeys(label for label, _, _ in bars))
    sides = list(dict.fromkeys(side for _, side, _ in bars))
    figure, axes = figures.subplots((9, 1.2 + 0.22 * len(bars) + 0.12 * len(labels)))
    axis = axes[0, 0]
    height = 0.8 / len(sides)
    for number, side in enumerate(sides):
        mine = [(labels.index(label), found) for label, one, found in bars if one == side]
        places = [place + (number - (len(sides) - 1) / 2) * height for place, _ in mine]
        color = figures.COLORS[number]
        widths = [statistics.median(found) - 1 for _, found in mine]
        axis.barh(places, widths, height, left=1, color=color, alpha=0.6, label=f"compared with {side}")
        points = [(one, place) for place, (_, found) in zip(places, mine, strict=True) for one in found]
        axis.plot(*zip(*points, strict=True), ".", color=color, markersize=4)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.invert_yaxis()
    axis.legend(loc="lower right", fontsize=8, frameon=False)
    figures.describe(axis, title, "bert_jax / peer, a point for each round")
    figure.savefig(path, dpi=120)


def _ceilings(cases: Mapping[str, Mapping[str, Line]]) -> dict[str, float]:
    """Returns the best matmul FLOP/s for each dtype."""
    found: dict[str, float] = {}
    for case, sides in cases.items():
        what = json.loads(case)
        if what["kind"] == "matrix":
            found[what["dtype"]] = max(line.best for line in sides.values())
    return found


def _describe(what: Mapping[str, Any]) -> list[str]:
    """Returns the cells that name a case."""
    shape = f"{what['batch']} x {what['length']}" if "batch" in what else ""
    if what["kind"] == "matrix":
        shape = f"{what['size']} x {what['size']}"
    parts = [what.get("rows", ""), what.get("dtype", "")]
    if what["kind"] in ("train", "finetune"):
        rates = dict.fromkeys(f"{what[name]:g}" for name in ("dropout", "attention_dropout"))
        parts.insert(1, f"dropout {', '.join(rates)}")
    kind = _TITLES.get(what["kind"], what["kind"])
    return [kind, what.get("model", ""), shape, ", ".join(filter(None, parts))]


def _unit(unit: str) -> str:
    return "GFLOP/s" if unit == "FLOP/s" else unit


def _number(value: float, unit: str) -> str:
    value = value / 1e9 if unit == "FLOP/s" else value
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _gib(size: int | None) -> str:
    return "" if not size else f"{size / 2**30:.1f}"
