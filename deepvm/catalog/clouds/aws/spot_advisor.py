"""AWS's public Spot Advisor file: how often VMs of a type are interrupted. Needs no account.

Its savings are not read: prices derived from them are off by 15 % in the median and by a factor of two in one of ten.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO, Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from deepvm.catalog.clouds.aws.redaction import redact, secrets_of
from deepvm.catalog.signals.signal import ADVISOR, Provider, Signal
from deepvm.core.cluster.instances import INTERRUPTION_BANDS
from deepvm.errors import CloudError, RequestError

ADVISOR_URL = "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json"
URL_VARIABLE = "DEEPVM_ADVISOR_URL"

MOST_BYTES = 64 * 2**20
"""The real file has some 10 MiB."""

_CHUNK = 2**16
_Table = Mapping[str, Any]
_AGAIN = "try again later; without it, types are not marked by how often they are interrupted"
_NETWORK = f"check the network and the proxy settings (HTTPS_PROXY), or set {URL_VARIABLE} to a copy"


@dataclass(frozen=True)
class _Download:
    """What one download gave: the table of all regions, or why there is none."""

    now: datetime
    regions: _Table | None = None
    error: CloudError | None = None


class AdvisorProvider(Provider):
    """How often spot VMs of each type are interrupted, in AWS's five bands.

    The file holds all regions; who asks about several at one time ``now`` causes one download, whether it works or not.
    """

    kind = ADVISOR

    def __init__(self, url: str = "", *, timeout_s: float = 10, total_s: float = 60) -> None:
        """Remember where the file is.

        Args:
            url: empty: the environment's ``DEEPVM_ADVISOR_URL``, else AWS's own address.
            timeout_s: seconds for a connection, and between two pieces of the file.
            total_s: seconds for the whole file.

        Raises:
            RequestError: not an address of the web.
        """
        self._url = url or os.environ.get(URL_VARIABLE) or ADVISOR_URL
        self._timeout_s, self._total_s = timeout_s, total_s
        self._lock = threading.Lock()
        self._last: _Download | None = None
        if not _on_the_web(self._url):
            option = "url" if url else URL_VARIABLE
            raise RequestError(option, _shown(self._url), "an https:// or http:// address without user and password")

    def fetch(self, region: str, now: datetime) -> Signal:
        """See :meth:`Provider.fetch`."""
        what = f"Spot Advisor at {_shown(self._url)}"
        types = _types(self._regions(now, what), region, what)
        refused: Counter[str] = Counter()
        bands = {}
        for name, row in sorted(types.items()):
            band = row.get("r") if isinstance(row, dict) else None
            if type(band) is int and 0 <= band < len(INTERRUPTION_BANDS):
                bands[name] = band
            else:
                refused["unknown band"] += 1
        if not bands:
            raise _unreadable(what, f"none of {len(types)} types in {region} has a band")
        return Signal(self.kind, region, now, "AWS Spot Advisor", bands, dict(refused))

    def _regions(self, now: datetime, what: str) -> _Table:
        with self._lock:
            if self._last is None or self._last.now != now:
                try:
                    self._last = _Download(now, _tables(_parse(self._download(what), what), what))
                except CloudError as error:
                    self._last = _Download(now, error=error)
            last = self._last
        if last.error is not None:
            # An exception keeps the traceback of whoever raises it, so each thread gets its own.
            raise CloudError(what, last.error.why, last.error.detail, last.error.advice)
        return last.regions or {}

    def _download(self, what: str) -> bytes:
        end = time.monotonic() + self._total_s
        try:
            with _opener().open(self._url, timeout=self._timeout_s) as reply:
                return _read(reply, end, self._total_s, what)
        except HTTPError as error:
            error.close()
            why = "throttled" if error.code in (429, 503) else "reply"
            said = redact(error.reason, secrets_of(os.environ))
            raise CloudError(what, why, f"the server says {error.code} {said}", _AGAIN) from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            if isinstance(reason, TimeoutError):
                raise CloudError(what, "timeout", f"no answer within {self._timeout_s:g} s", _NETWORK) from None
            words = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
            detail = redact(words, secrets_of(os.environ)) or type(reason).__name__
            raise CloudError(what, "network", detail, _NETWORK) from None


class _WebRedirects(request.HTTPRedirectHandler):
    """Follows the server to other places of the web, never into the local files, never from https to http."""

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> request.Request | None:
        if not _on_the_web(newurl) or (req.type == "https" and urlsplit(newurl).scheme.lower() != "https"):
            fp.close()
            raise URLError(f"the server points to {_shown(newurl)}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> request.OpenerDirector:
    # request.build_opener() would add handlers for local files and FTP.
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        _WebRedirects(),
        request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _on_the_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    # urllib would take a user and password for the host's name, and show them in its error.
    plain = "@" not in parts.netloc and url.isprintable() and " " not in url
    return parts.scheme.lower() in ("https", "http") and bool(parts.hostname) and plain


def _shown(url: str) -> str:
    """The address without what may be secret: user, password, signature."""
    return redact(url.partition("?")[0], secrets_of(os.environ))


def _read(reply: HTTPResponse, end: float, total_s: float, what: str) -> bytes:
    """The whole body, within limits of size and time; each piece has its time-out already."""
    pieces: list[bytes] = []
    size = 0
    # read1() gives what has come, where read() would wait for a full piece from a server that drips.
    while piece := reply.read1(_CHUNK):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_BYTES:
            raise _unreadable(what, f"the file is larger than {MOST_BYTES // 2**20} MiB")
        if time.monotonic() > end:
            raise CloudError(what, "timeout", f"the file was not complete after {total_s:g} s", _NETWORK)
    promised = reply.headers.get("Content-Length", "")
    if promised.isdigit() and size < int(promised):
        raise CloudError(what, "network", f"the file broke off after {size} of {promised} bytes", _NETWORK)
    return b"".join(pieces)


def _parse(body: bytes, what: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        start = body.strip()[:1]
        found = "is empty" if not start else "is a web page" if start == b"<" else "is not JSON, or not whole"
        raise _unreadable(what, f"the file {found}") from None


def _tables(document: Any, what: str) -> _Table:
    regions = document.get("spot_advisor") if isinstance(document, dict) else None
    if not isinstance(regions, dict) or not regions:
        raise _unreadable(what, "the file has no table spot_advisor")
    return regions


def _types(regions: _Table, region: str, what: str) -> _Table:
    if region not in regions:
        advice = f"it knows {len(regions)} regions, such as {', '.join(sorted(regions)[:3])}; check --region"
        raise CloudError(what, "region", f"the file has no region {region}", redact(advice))
    types = regions[region].get("Linux") if isinstance(regions[region], dict) else None
    if not isinstance(types, dict):
        raise _unreadable(what, f"the file has no table for Linux in {region}")
    return types


def _unreadable(what: str, detail: str) -> CloudError:
    return CloudError(what, "reply", detail, f"{_AGAIN}; see that {URL_VARIABLE} is right if it is set")
