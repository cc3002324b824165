"""The file of one cached signal: a JSON document of three lines with a checksum.

::

    {"schema_version":"deepvm.signal/1","sha256":"<of every byte from line 2 on>",
    "kind":"spot","region":"us-east-1","fetched_at":"...","observed_at":"...","source":"...","refused":{},
    "data":{...}}

The hash covers the head as well as the data, because a flipped digit in ``fetched_at`` would pass an old price as new;
and it is taken of the bytes as they stand, so that nothing is parsed before it is known to be what was written.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from deepvm.catalog.signals import signal as provider
from deepvm.catalog.signals.signal import Signal
from deepvm.errors import DataError

SCHEMA_VERSION = "deepvm.signal/1"

_VERSION = re.compile(r'\{"schema_version":"deepvm\.signal/(\d{1,9})"', re.ASCII)
_FIRST_LINE = re.compile(r'\{"schema_version":"deepvm\.signal/1","sha256":"([0-9a-f]{64})",\n', re.ASCII)

_FORMS: dict[str, tuple[type[Any], type[Any]]] = {
    # kind: what its data is, and what each of its entries is
    provider.SPECS: (dict, dict),
    provider.OFFERINGS: (dict, list),
    provider.ZONES: (dict, str),
    provider.ON_DEMAND: (dict, str),
    provider.SPOT: (dict, dict),
    provider.HISTORY: (dict, dict),
    provider.ADVISOR: (dict, int),
    provider.QUOTAS: (list, dict),
    provider.PLACEMENT: (list, dict),
    provider.FAILURES: (dict, dict),
}
_NEVER_EMPTY = frozenset({provider.SPECS, provider.OFFERINGS, provider.ZONES, provider.ON_DEMAND, provider.SPOT})


@dataclass(frozen=True)
class Stored:
    """A signal as a file holds it.

    Attributes:
        signal: the facts, with origin ``cache``.
        fetched_at: when they were fetched, UTC; the signal's own ``observed_at`` may be older.
    """

    signal: Signal
    fetched_at: datetime


def encode(signal: Signal, fetched_at: datetime) -> bytes:
    """The bytes of the file.

    Raises:
        ValueError: the data has no JSON form (NaN), or a time has no zone.
        TypeError: the data holds something that JSON lacks.
    """
    head = {
        "kind": signal.kind,
        "region": signal.region,
        "fetched_at": _utc(fetched_at).isoformat(),
        "observed_at": _utc(signal.observed_at).isoformat(),
        "source": signal.source,
        "refused": dict(signal.refused),
    }
    sealed = f'{_canonical(head)[1:-1]},\n"data":{_canonical(signal.data)}}}\n'.encode()
    first = f'{{"schema_version":"{SCHEMA_VERSION}","sha256":"{hashlib.sha256(sealed).hexdigest()}",\n'
    return first.encode() + sealed


def decode(text: str) -> Stored | None:
    """Read a file; None if another version of deepvm wrote it in a form of its own.

    Raises:
        DataError: not what :func:`encode` wrote; the message says in a few words why.
    """
    version = _VERSION.match(text)
    if version is not None and int(version[1]) != 1:
        return None
    first = _FIRST_LINE.match(text)
    if first is None:
        raise DataError("it is no cached signal")
    sealed = text[first.end() :]
    try:
        right = hashlib.sha256(sealed.encode()).hexdigest() == first[1]
    except UnicodeEncodeError:
        right = False
    if not right:
        raise DataError("its bytes do not match its sha256")
    try:
        document = json.loads("{" + sealed)
        return Stored(_signal(document), _time(document["fetched_at"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"its content has another form ({type(error).__name__})") from None


def form_problem(kind: str, data: Any) -> str:
    """What is wrong with the outermost form of a kind's data, in a few words; empty if nothing is."""
    outer, inner = _FORMS[kind.partition(":")[0]]
    if type(data) is not outer:
        return f"{type(data).__name__} in place of {outer.__name__}"
    entries: list[Any] = list(data.values()) if outer is dict else data
    # type() and not isinstance(): a boolean is no band of the advisor.
    if not all(type(e) is inner for e in entries) or (outer is dict and not all(type(k) is str for k in data)):
        return f"an entry is no {inner.__name__}"
    return "it is empty" if not data and kind in _NEVER_EMPTY else ""


def _signal(document: Any) -> Signal:
    kind, refused = document["kind"], document["refused"]
    texts = (kind, document["region"], document["source"])
    if not all(type(t) is str for t in texts) or not all(type(n) is int for n in refused.values()):
        raise ValueError("head")
    if form_problem(kind, document["data"]):
        raise ValueError("data")
    return Signal(
        kind=kind,
        region=document["region"],
        observed_at=_time(document["observed_at"]),
        source=document["source"],
        data=document["data"],
        refused=refused,
        origin="cache",
    )


def _canonical(value: Any) -> str:
    # ASCII without spaces, keys sorted: the same facts give the same bytes.
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True)


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment.astimezone(timezone.utc)


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() != timedelta(0):
        raise ValueError("not UTC")
    return moment
