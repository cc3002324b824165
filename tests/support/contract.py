"""What users rely on, recorded in ``tests/contract/``: documents, schemas, options, exit codes.

``WRITE_CONTRACT=1`` records it again. A change in the recorded files is a change for users: it
needs a reason in the CHANGELOG.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from support.places import TESTS

CONTRACT_FOLDER = TESTS / "contract"
_MOMENT = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?")
_EMBEDDED_DATES = re.compile(r"2026-(0\d|10|11-0)")


def check_contract(name: str, text: str) -> None:
    """The recorded file ``name`` holds ``text``."""
    path = CONTRACT_FOLDER / name
    if os.environ.get("WRITE_CONTRACT"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs: see support/contract.py"


def masked(text: str, folder: Path) -> str:
    """``text`` without what differs between two runs: the working folder, and the time of day."""
    text = text.replace(str(folder.resolve()), "FOLDER").replace(str(folder), "FOLDER")
    text = re.sub(r"/tmp/deepvm-tests-\w+", "NOWHERE", text)
    return _MOMENT.sub(_masked_moment, text)


def _masked_moment(match: re.Match[str]) -> str:
    """Dates of embedded data stay: they are part of the answer."""
    return match[0] if _EMBEDDED_DATES.match(match[0]) else "NOW"
