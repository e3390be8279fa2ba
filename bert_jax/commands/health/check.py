"""The result of a check of `bert-jax doctor`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

GIB = 2**30
OK, WARNING, PROBLEM = "ok", "warning", "problem"

_LOCKS = {(3, 11): "requirements.lock"}  # other versions of Python use the newest lock
LOCK = Path(__file__).resolve().parents[3] / _LOCKS.get(sys.version_info[:2], "requirements-3.13.lock")


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of a check: what was checked, its status and details, and a fix if there is a problem."""

    name: str
    status: str
    detail: str
    fix: str = ""


def enough(name: str, detail: str, amount: float, *levels: tuple[float, str, str]) -> Check:
    """Returns the check of an amount.

    Args:
        name: what was checked.
        detail: describes the amount.
        amount: the amount.
        *levels: (least, status, fix), ascending. The first level that the amount does not reach gives the
            status and the fix; the status is OK if it reaches all of them.
    """
    for least, status, fix in levels:
        if amount < least:
            return Check(name, status, detail, fix)
    return Check(name, OK, detail)
