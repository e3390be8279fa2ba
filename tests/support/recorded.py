"""What earlier code computed, as tests/testdata/gate keeps it, and how it is compared with what is now."""

import hashlib
import importlib.metadata
import json
import platform
from pathlib import Path

import numpy as np

from bert_jax.kernels.platform import processor_fields

TESTDATA = Path(__file__).resolve().parents[1] / "testdata"
FOLDER = TESTDATA / "gate"

# Between processors: XLA chooses vector widths and orders of sums by the processor, and rounding errors of
# float32 grow over the steps of a run.
TOLERANCE = dict(rtol=2e-4, atol=2e-5)


def read(name):
    """The content of FOLDER/NAME.json; {} where there is none."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write(name, content):
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=0, sort_keys=True) + "\n")


def differences(kind, expected, found):
    """One line for each name whose value differs, with what to do if that is meant; "" if none does."""
    lines = []
    for name in sorted({*expected, *found}):
        if name not in found:
            lines.append(f"{kind} {name!r} is recorded and was not computed")
        elif name not in expected:
            lines.append(f"{kind} {name!r} is computed and was not recorded")
        elif expected[name] != found[name]:
            lines.append(f"{kind} {name!r} changed: it was {expected[name]} and is {found[name]}")
    return explain(lines)


def explain(lines):
    if not lines:
        return ""
    return "\n".join(
        [
            *lines,
            "If this is intended, record it by `python tests/testdata/make_gate.py` and describe it in one "
            "line of tests/testdata/gate/CHANGES.md in the same commit.",
        ]
    )


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def tree_digests(folder):
    """{path in the folder: digest of the file}."""
    folder = Path(folder)
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in paths}


def jax_version():
    """The version that lowers programs: another lowers the same ones to other operations."""
    return importlib.metadata.version("jax")


def machine():
    """The processor and the compiler, which decide the last bits of what is computed."""
    fields = processor_fields()
    names = ("model name", "cpu family", "model", "stepping")
    processor = " ".join(fields.get(name, "") for name in names) if fields else platform.processor()
    return f"{processor}, jaxlib {importlib.metadata.version('jaxlib')}"


def same_numbers(expected, found, exact):
    """Whether two arrays, or nested lists of numbers, are equal: bit for bit, or to float32's rounding."""
    one, two = np.asarray(expected), np.asarray(found)
    if one.shape != two.shape:
        return False
    if exact or one.dtype.kind not in "fc":
        return bool(np.array_equal(one, two, equal_nan=one.dtype.kind == "f"))
    return bool(np.allclose(two, one, equal_nan=True, **TOLERANCE))
