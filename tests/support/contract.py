"""What users rely on, recorded in ``tests/contract/``: documents, schemas, options, exit codes.

``WRITE_CONTRACT=1`` records it again. A change in the recorded files is a change for users: it
needs a reason in the CHANGELOG. Only the last digits of numbers may differ: they depend on the
processor.
"""

from __future__ import annotations

import os
import re
from math import isclose
from pathlib import Path

from support.places import TESTS

CONTRACT_FOLDER = TESTS / "contract"
_MOMENT = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?")
_EMBEDDED_DATES = re.compile(r"2026-(0\d|10|11-0)")


_FRACTION = re.compile(r"(\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+)")


def check_contract(name: str, text: str, *, rel: float = 1e-9) -> None:
    """The recorded file ``name`` holds ``text``, numbers with fractions up to a share ``rel``."""
    path = CONTRACT_FOLDER / name
    if os.environ.get("WRITE_CONTRACT"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    recorded = path.read_text()
    if text == recorded:
        return
    differs = f"{path} differs: see support/contract.py"
    found = _FRACTION.split(text)
    expected = _FRACTION.split(recorded)
    assert found[::2] == expected[::2], differs
    numbers = zip(found[1::2], expected[1::2], strict=True)
    assert all(isclose(float(a), float(b), rel_tol=rel, abs_tol=1e-3 * rel) for a, b in numbers), (
        differs
    )


def masked(text: str, folder: Path) -> str:
    """``text`` without what differs between two runs: the working folder, and the time of day."""
    text = text.replace(str(folder.resolve()), "FOLDER").replace(str(folder), "FOLDER")
    text = re.sub(r"/tmp/deepvm-tests-\w+", "NOWHERE", text)
    return _MOMENT.sub(_masked_moment, text)


def _masked_moment(match: re.Match[str]) -> str:
    """Dates of embedded data stay: they are part of the answer."""
    return match[0] if _EMBEDDED_DATES.match(match[0]) else "NOW"
