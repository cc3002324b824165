"""Download a public file within limits of size and time, sending no credentials."""

import gzip
import time
import zlib
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from deepvm.catalog.price_sources import PublicSource
from deepvm.catalog.signals.redaction import redact
from deepvm.errors import CloudError, RequestError
from deepvm.records import dataclass

_TIMEOUT_S = 10.0  # For a connection, and between two pieces of a file


@dataclass(frozen=True)
class PublicFile:
    """A public file."""

    url: str
    what: str  # its name in errors
    variable: str  # the setting that names another address
    advice: str = "try again later"
    total_s: float = 60.0  # for the whole file
    max_bytes: int = 64 * 2**20  # unpacked

    def __post_init__(self) -> None:
        if not _on_the_web(self.url):
            raise RequestError(
                self.variable,
                shown(self.url),
                "an https:// or http:// address without user and password",
            )

    def unreadable(self, detail: str) -> CloudError:
        return CloudError(
            self.what, "reply", detail, f"{self.advice}; if {self.variable} is set, check its value"
        )


def public_file(source: PublicSource, url: str, total_s: float) -> PublicFile:
    """A file of a source. Raises RequestError: the setting names no web address."""
    return PublicFile(url, f"{source.title} at {shown(url)}", source.variable, total_s=total_s)


@dataclass(frozen=True)
class DownloadedFile:
    """The bytes of a file, unpacked, and when the server says that it was written, if it does."""

    body: bytes
    written_at: datetime | None = None


def download(file: PublicFile) -> DownloadedFile:
    """The whole file; blocks for little more than ``total_s`` at most. Raises CloudError."""
    end = time.monotonic() + file.total_s
    timeout_s = min(file.total_s, _TIMEOUT_S)
    why = "network"
    try:
        with request.build_opener(_SafeRedirects).open(
            _request_to(file.url), timeout=timeout_s
        ) as reply:
            return DownloadedFile(_body(reply, file, end), _written_at(reply))
    except HTTPError as error:
        error.close()
        why = "throttled" if error.code in (429, 503) else "reply"
        detail = f"the server says {error.code} {redact(error.reason)}"
        raise CloudError(file.what, why, detail, file.advice) from None
    except (gzip.BadGzipFile, zlib.error):
        raise file.unreadable("the file is not packed as the server says") from None
    except (OSError, EOFError, HTTPException, ValueError) as error:
        if isinstance(error, URLError):
            reason = error.reason
        else:
            reason = error
        detail = redact(getattr(reason, "strerror", None) or reason) or type(reason).__name__
        if isinstance(reason, TimeoutError):
            why = "timeout"
            detail = f"no answer within {timeout_s:g} s"
        raise CloudError(
            file.what,
            why,
            detail,
            f"check the network and HTTPS_PROXY, or set {file.variable} to a copy",
        ) from None


def shown(url: str) -> str:
    """An address without user, password and signature."""
    return redact(url.partition("?")[0])


def _request_to(url: str) -> request.Request:
    # No other headers: urllib reads no .netrc and keeps no cookies.
    return request.Request(url, headers={"User-Agent": "deepvm", "Accept-Encoding": "gzip"})


def _body(reply: HTTPResponse, file: PublicFile, end: float) -> bytes:
    packed = reply.headers.get("Content-Encoding", "").strip().lower() == "gzip"
    stream = gzip.GzipFile(fileobj=reply) if packed else reply
    body = bytearray()
    # read1() returns what has come, where read() would wait for a full block from a slow server.
    while piece := stream.read1(2**16):
        body += piece
        if len(body) > file.max_bytes:  # a small file may unpack to any size
            raise file.unreadable(f"the file is larger than {file.max_bytes // 2**20} MiB")
        if time.monotonic() > end:
            raise CloudError(
                file.what,
                "timeout",
                f"the file was not complete after {file.total_s:g} s",
                file.advice,
            )
    promised = reply.headers.get("Content-Length", "")
    if not packed and promised.isdigit() and len(body) < int(promised):
        raise EOFError(f"the file broke off after {len(body)} of {promised} bytes")
    return bytes(body)


def _written_at(reply: HTTPResponse) -> datetime | None:
    try:
        written_at = parsedate_to_datetime(reply.headers.get("Last-Modified", ""))
        return written_at.astimezone(timezone.utc)
    except (ValueError, TypeError, OverflowError):
        return None


class _SafeRedirects(request.HTTPRedirectHandler):
    """Follows redirects within the web, never from https to http."""

    def redirect_request(
        self,
        req: request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> request.Request | None:
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        downgraded = req.type == "https" and not newurl.lower().startswith("https:")
        if followed is None or downgraded or not _on_the_web(newurl):
            return None  # which makes an HTTPError
        # urllib's own request would send the password of a proxy to a host without a proxy.
        return _request_to(followed.full_url)


def _on_the_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    # urllib would take user and password for a part of the host's name, and show them in its error.
    plain = "@" not in parts.netloc and url.isprintable() and " " not in url
    return parts.scheme.lower() in ("https", "http") and bool(parts.hostname) and plain
