"""The file of one cached signal: a JSON document of three lines with a checksum.

::

    {"schema_version":"deepvm.signal/1","sha256":"<of every byte from line 2 on>",
    "kind":"spot","region":"us-east-1","fetched_at":"...","observed_at":"...","source":"...","refused":{},
    "data":{...}}

The hash covers the head too, because a flipped digit in ``fetched_at`` would pass an old price as
new; and it is one of bytes, so that nothing is parsed before it is known to be what was written.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any

from deepvm.catalog.signals.signal import Signal, form_problem
from deepvm.errors import DataError

SCHEMA_VERSION = "deepvm.signal/1"

_FIRST_LINE = re.compile(
    r'\{"schema_version":"deepvm\.signal/(\d{1,9})"(?:,"sha256":"([0-9a-f]{64})",\n)?', re.ASCII
)


def encode(signal: Signal, fetched_at: datetime) -> bytes:
    """The bytes of the file.

    A ValueError or TypeError if the data has no JSON form, or a time no zone.
    """
    head = {
        "kind": signal.kind,
        "region": signal.region,
        "fetched_at": _utc(fetched_at),
        "observed_at": _utc(signal.observed_at),
        "source": signal.source,
        "refused": dict(signal.refused),
        **({} if signal.dated else {"dated": False}),
    }
    sealed = f'{_canonical(head)[1:-1]},\n"data":{_canonical(signal.data)}}}\n'.encode()
    first = (
        f'{{"schema_version":"{SCHEMA_VERSION}","sha256":"{hashlib.sha256(sealed).hexdigest()}",\n'
    )
    return first.encode() + sealed


def decode(text: str) -> Signal | None:
    """The signal in a file, with origin ``cache``.

    None if another version of deepvm wrote it in a form of its own.

    Raises:
        DataError: not what :func:`encode` wrote; the message says in a few words why.
    """
    first = _FIRST_LINE.match(text)
    if first is not None and int(first[1]) != 1:
        return None
    if first is None or first[2] is None:
        raise DataError("it is no cached signal")
    sealed = text[first.end() :]
    if hashlib.sha256(sealed.encode()).hexdigest() != first[2]:
        raise DataError("its bytes do not match its sha256")
    try:
        document = json.loads("{" + sealed)
        kind, refused = document["kind"], document["refused"]
        texts = (kind, document["region"], document["source"])
        if not all(type(t) is str for t in texts) or not all(
            type(n) is int for n in refused.values()
        ):
            raise ValueError("head")
        if form_problem(kind, document["data"]):
            raise ValueError("data")
        observed_at, fetched_at = _time(document["observed_at"]), _time(document["fetched_at"])
        dated = document.get("dated", True)
        if type(dated) is not bool:
            raise ValueError("dated")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"its content has another form ({type(error).__name__})") from None
    return Signal(
        *texts[:2], observed_at, texts[2], document["data"], refused, "cache", fetched_at, dated
    )


def _canonical(value: Any) -> str:
    # ASCII without spaces, keys sorted: the same facts give the same bytes.
    return json.dumps(
        value, ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True
    )


def _utc(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment.astimezone(timezone.utc).isoformat()


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() != timedelta(0):
        raise ValueError("not UTC")
    return moment
