"""AWS's public Spot Advisor file: how often VMs of a type are interrupted. Needs no account.

Its savings are not read: prices derived from them are off by 15 % in the median and by a factor of two in one of ten.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO, Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from deepvm.catalog.clouds.aws.errors import redact, secrets_of
from deepvm.catalog.signals.signal import ADVISOR, Provider, Reading
from deepvm.core.cluster.instances import INTERRUPTION_BANDS
from deepvm.errors import CloudError, RequestError

ADVISOR_URL = "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json"
URL_VARIABLE = "DEEPVM_ADVISOR_URL"

MOST_BYTES = 64 * 2**20
"""The real file has about 10 MiB."""

_AGAIN = "try again later; without it, types are not marked by how often they are interrupted"
_NETWORK = f"check the network and the proxy settings (HTTPS_PROXY), or set {URL_VARIABLE} to a copy"


class AdvisorProvider(Provider):
    """How often spot VMs of each type are interrupted, in AWS's five bands.

    The file holds all regions: it is downloaded, or fails, once for each time ``now``.
    """

    timeout_s, total_s = 10.0, 60.0  # for a connection and between two pieces of the file; for the whole file

    def __init__(self) -> None:
        """Take the file from ``DEEPVM_ADVISOR_URL``, else from AWS; a RequestError if that is no web address."""
        super().__init__(ADVISOR, "AWS Spot Advisor", self._read_bands)
        self._url = os.environ.get(URL_VARIABLE) or ADVISOR_URL
        self._what = f"Spot Advisor at {_shown(self._url)}"
        self._lock = threading.Lock()
        self._last: tuple[datetime, Mapping[str, Any] | CloudError] | None = None
        if not _on_the_web(self._url):
            allowed = "an https:// or http:// address without user and password"
            raise RequestError(URL_VARIABLE, _shown(self._url), allowed)

    def _read_bands(self, region: str, now: datetime) -> Reading:
        types = self._types(region, now)
        found = {name: row.get("r") for name, row in sorted(types.items()) if isinstance(row, dict)}
        # type() and not isinstance(): True is no band.
        bands = {n: band for n, band in found.items() if type(band) is int and 0 <= band < len(INTERRUPTION_BANDS)}
        if not bands:
            raise self._unreadable(f"none of {len(types)} types in {region} has a band")
        lost = len(types) - len(bands)
        return Reading(bands, {"unknown band": lost} if lost else {})

    def _types(self, region: str, now: datetime) -> Mapping[str, Any]:
        """The region's rows, unchecked."""
        with self._lock:
            if self._last is None or self._last[0] != now:
                try:
                    self._last = now, self._parse(self._download())
                except CloudError as error:
                    self._last = now, error
            regions = self._last[1]
        if isinstance(regions, CloudError):
            # An exception keeps the traceback of whoever raises it, so each thread gets its own.
            raise CloudError(self._what, regions.why, regions.detail, regions.advice)
        if region not in regions:
            advice = f"it knows {len(regions)} regions, such as {', '.join(sorted(regions)[:3])}; check --region"
            raise CloudError(self._what, "region", f"the file has no region {region}", redact(advice))
        types = regions[region].get("Linux") if isinstance(regions[region], dict) else None
        if not isinstance(types, dict):
            raise self._unreadable(f"the file has no table for Linux in {region}")
        return types

    def _download(self) -> bytes:
        end = time.monotonic() + self.total_s
        try:
            with request.build_opener(_WebRedirects).open(self._url, timeout=self.timeout_s) as reply:
                return self._read(reply, end)
        except HTTPError as error:
            error.close()
            why = "throttled" if error.code in (429, 503) else "reply"
            said = redact(error.reason, secrets_of(os.environ))
            raise CloudError(self._what, why, f"the server says {error.code} {said}", _AGAIN) from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            if isinstance(reason, TimeoutError):
                raise CloudError(self._what, "timeout", f"no answer within {self.timeout_s:g} s", _NETWORK) from None
            words = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
            detail = redact(words, secrets_of(os.environ)) or type(reason).__name__
            raise CloudError(self._what, "network", detail, _NETWORK) from None

    def _read(self, reply: HTTPResponse, end: float) -> bytes:
        """The whole body, within limits of size and time."""
        body = bytearray()
        # read1() returns what has come, where read() would wait for a full block from a slow server.
        while piece := reply.read1(2**16):
            body += piece
            if len(body) > MOST_BYTES:
                raise self._unreadable(f"the file is larger than {MOST_BYTES // 2**20} MiB")
            if time.monotonic() > end:
                late = f"the file was not complete after {self.total_s:g} s"
                raise CloudError(self._what, "timeout", late, _NETWORK)
        promised = reply.headers.get("Content-Length", "")
        if promised.isdigit() and len(body) < int(promised):
            broken = f"the file broke off after {len(body)} of {promised} bytes"
            raise CloudError(self._what, "network", broken, _NETWORK)
        return bytes(body)

    def _parse(self, body: bytes) -> Mapping[str, Any]:
        """The tables of all regions, by name."""
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            start = body.strip()[:1]
            found = "is empty" if not start else "is a web page" if start == b"<" else "is not JSON, or not whole"
            raise self._unreadable(f"the file {found}") from None
        regions = document.get("spot_advisor") if isinstance(document, dict) else None
        if not isinstance(regions, dict) or not regions:
            raise self._unreadable("the file has no table spot_advisor")
        return regions

    def _unreadable(self, detail: str) -> CloudError:
        return CloudError(self._what, "reply", detail, f"{_AGAIN}; see that {URL_VARIABLE} is right if it is set")


class _WebRedirects(request.HTTPRedirectHandler):
    """Follows redirects within the web, never to local files, never from https to http."""

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> request.Request | None:
        if not _on_the_web(newurl) or (req.type == "https" and urlsplit(newurl).scheme.lower() != "https"):
            fp.close()
            raise URLError(f"the server points to {_shown(newurl)}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _on_the_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    # urllib would take user and password for a part of the host's name, and show them in its error.
    plain = "@" not in parts.netloc and url.isprintable() and " " not in url
    return parts.scheme.lower() in ("https", "http") and bool(parts.hostname) and plain


def _shown(url: str) -> str:
    """The address without user, password and signature."""
    return redact(url.partition("?")[0], secrets_of(os.environ))
