"""What is measured, as groups of turns: the sides of a case, each in turn as often as there are rounds."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from turns import Turn

HERE = Path(__file__).resolve().parent
KINDS = ("matrix", "train", "finetune", "forward", "first_step", "checkpoint", "records")
# Rows a step on a CPU, by kind and tokens a row; a forward pass also has one row.
_CPU_ROWS = {"train": {128: 8, 512: 2}, "finetune": {128: 16, 512: 4}, "forward": {128: 32, 512: 8}}
_SMALL = ("tiny", "mini", "small", "L-2", "L-4", "ettin-17m", "pretrain/hour")  # four times the rows
# Rows a step for a GPU of 80 GB or more; less memory takes a half, a quarter, ...
_GPU_ROWS = {"large": {128: 128, 512: 32}, "base": {128: 256, 512: 64}}
FULL_MEMORY_GIB = 75


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        kinds: of `KINDS`.
        models: sizes or configs.
        lengths: tokens a row.
        variants: ROWS:DROPOUT:ATTENTION_DROPOUT:DTYPE, the first with what the peers compute, too.
        batch: rows a step; 0 for a default by model, length and device.
        steps: timed steps of each process.
        memory_gib: of the GPU; 0 on a CPU.
        peer_python: a Python with torch and transformers, and with onnxruntime on a CPU; "" for none.
        stock: whether the peer is measured as transformers' documentation shows it, too.
        output: a directory for what is prepared.
        corpus: (files, format, vocabulary) for records.
        small: tiny shapes, to try the runner out.
    """

    kinds: Sequence[str]
    models: Sequence[str]
    lengths: Sequence[int]
    variants: Sequence[str]
    batch: int
    steps: int
    memory_gib: float
    peer_python: str
    stock: bool
    output: Path
    corpus: tuple[str, str, str] | None = None
    small: bool = False

    def preparations(self) -> Iterator[Turn]:
        """Yields what has to run before the rounds: the folders from which the peers read."""
        if not self.peer_python:
            return
        kinds = [kind for kind in self.kinds if kind not in ("matrix", "records")]
        for model in self.models if kinds else ():
            shapes = {f"{rows}x{length}" for _, rows, length in self._cases(model)}
            onnx = ["--onnx"] if "forward" in self.kinds and not self.memory_gib else []
            command = ["prepare", model, self.folder(model), *sorted(shapes), *onnx]
            yield Turn(f"{model} as a folder", self._ours(*command))

    def folder(self, model: str) -> Path:
        return self.output / "models" / model.replace("/", "-").replace(":", "-")

    def groups(self) -> Iterator[list[Turn]]:
        """Yields the sides of each case."""
        if "matrix" in self.kinds:
            yield from self._matrices()
        for only, model in itertools.product(self.kinds, self.models):
            for kind, rows, length in self._cases(model):
                if kind == only:
                    yield self._sides(kind, model, rows, length)
        if "records" in self.kinds and self.corpus:
            scratch = f"--scratch={self.output}"
            yield [Turn("records", self._ours("records", *self.corpus, "--steps=1", scratch))]

    def _cases(self, model: str) -> Iterator[tuple[str, int, int]]:
        """Yields the kinds, rows a step and tokens a row of a model."""
        for kind, length in itertools.product(self.kinds, self.lengths):
            if kind in ("train", "finetune", "forward"):
                yield kind, self._rows(kind, model, length), length
            if kind == "forward":
                yield kind, 1, length
        for kind in ("first_step", "checkpoint"):  # which the number of tokens does not change
            if kind in self.kinds:
                yield kind, self._rows("train", model, self.lengths[0]), self.lengths[0]

    def _rows(self, kind: str, model: str, length: int) -> int:
        if self.batch:
            return self.batch
        if self.memory_gib:
            rows = _GPU_ROWS.get(model, _GPU_ROWS["base"]).get(length, 32768 // length)
            return max(1, rows >> halvings(self.memory_gib))
        rows = _CPU_ROWS[kind].get(length, max(1, 1024 // length))
        return rows * 4 if model.startswith(_SMALL) and kind != "forward" else rows

    def _variants(self, kind: str) -> list[str]:
        """Returns the variants of a kind."""
        if kind == "forward":  # without dropout, and with rows of one text
            dtypes = dict.fromkeys(variant.split(":")[3] for variant in self.variants)
            return [f"padded:0.0:0.0:{dtype}" for dtype in dtypes]
        found = [one for one in self.variants if kind == "train" or not one.startswith("packed")]
        return found[:1] if kind in ("first_step", "checkpoint") else found

    def _sides(self, kind: str, model: str, rows: int, length: int) -> list[Turn]:
        variants = self._variants(kind)
        shape = [model, str(rows), str(length)]
        name = f"{kind} {model}, {rows} x {length}"
        if kind == "first_step":
            return list(self._first_steps(name, shape, variants))
        options, stays = [f"--steps={self.steps}"], kind != "checkpoint"
        if kind == "checkpoint":
            options = ["--steps=3", f"--scratch={self.output}"]
        turns = [Turn(f"{name}: bert_jax", self._ours(kind, *shape, *variants, *options), stays=stays)]
        if not self.peer_python:
            return turns
        options = [*options, f"--folder={self.folder(model)}"]
        theirs = [one for one in variants if not one.startswith("packed")]
        ways: dict[str, list[str]] = {"PyTorch, compiled": []}
        if self.stock and kind != "checkpoint":
            ways["PyTorch"] = ["--stock"]
        if kind == "forward" and not self.memory_gib:
            ways["ONNX Runtime"] = ["--onnx"]
        for side, flags in ways.items():
            # The graph is float32.
            given = [one for one in theirs if "--onnx" not in flags or one.endswith("float32")]
            if given:
                command = self._theirs(*flags, kind, *shape, *given, *options)
                turns.append(Turn(f"{name}: {side}", command, stays=stays))
        return turns

    def _first_steps(self, name: str, shape: list[str], variants: list[str]) -> Iterator[Turn]:
        """Yields processes of one step, which are timed as a whole, first without compiled programs."""
        model, rows, length = shape
        sides = {"bert_jax": (self._ours, [], "JAX_COMPILATION_CACHE_DIR")}
        if self.peer_python:
            sides["PyTorch, compiled"] = (self._theirs, [], "TORCHINDUCTOR_CACHE_DIR")
            sides["PyTorch"] = (self._theirs, ["--stock"], "TORCHINDUCTOR_CACHE_DIR")
        fields = {"model": model, "batch": int(rows), "length": int(length)}
        for side, (process, flags, variable) in sides.items():
            cache = self.output / "compiled" / f"{side}-{model}".replace("/", "-").replace(" ", "")
            given = [f"--folder={self.folder(model)}"] if flags or side != "bert_jax" else []
            command = process(*flags, "first_step", *shape, *variants, *given)
            for kind in ("first step, cold", "first step, cached"):
                yield Turn(
                    f"{name}, {kind}: {side}",
                    command,
                    whole={"what": {"kind": kind, **fields}, "side": side},
                    environment={variable: str(cache)},
                    empties=cache if kind.endswith("cold") else None,
                )

    def _matrices(self) -> Iterator[list[Turn]]:
        size = 256 if self.small else 8192 if self.memory_gib else 2048
        for dtype in dict.fromkeys(variant.split(":")[3] for variant in self.variants):
            command = ["matrix", f"--dtype={dtype}", f"--size={size}"]
            sides = [Turn(f"{dtype} products: bert_jax", self._ours(*command), stays=True)]
            if self.peer_python:
                sides.append(Turn(f"{dtype} products: PyTorch", self._theirs(*command), stays=True))
            yield sides

    def _ours(self, *arguments) -> list[str]:
        return [sys.executable, str(HERE / "ours.py"), *map(str, arguments)]

    def _theirs(self, *arguments) -> list[str]:
        return [self.peer_python, str(HERE / "peers.py"), *map(str, arguments)]


def halvings(memory_gib: float) -> int:
    """Returns how often the rows for `FULL_MEMORY_GIB` are halved for a GPU of this memory."""
    count = 0
    while memory_gib < FULL_MEMORY_GIB * 0.5**count and count < 6:
        count += 1
    return count
