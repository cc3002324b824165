"""Download a public file within limits of size and time, sending no credentials."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from deepvm.catalog.signals.redaction import redact
from deepvm.errors import CloudError, RequestError

AGAIN = "try again later"
_GZIP = 31  # zlib's number for a gzip stream with any window


@dataclass(frozen=True)
class PublicFile:
    """A file that everybody may read.

    Attributes:
        url: without user and password. what: its name in errors. variable: the setting that names
            another address.
        again: what to do if it cannot be had, in words.
        timeout_s: for a connection and between two pieces; total_s: for the whole file.
        most_bytes: of the file, unpacked.
    """

    url: str
    what: str
    variable: str
    again: str = AGAIN
    timeout_s: float = 10.0
    total_s: float = 60.0
    most_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        """Raise a RequestError about the setting unless the address is one of the web."""
        if not _on_the_web(self.url):
            raise RequestError(
                self.variable,
                shown(self.url),
                "an https:// or http:// address without user and password",
            )

    def unreadable(self, detail: str) -> CloudError:
        """The error for a file with other content."""
        return CloudError(
            self.what,
            "reply",
            detail,
            f"{self.again}; see that {self.variable} is right if it is set",
        )

    def _unreached(self, why: str, detail: str) -> CloudError:
        network = (
            f"check the network and the proxy settings (HTTPS_PROXY), or set {self.variable} to a"
            " copy"
        )
        return CloudError(self.what, why, detail, network)


@dataclass(frozen=True)
class Downloaded:
    """The bytes of a file, unpacked, and when the server says that it was written.

    None if it does not say.
    """

    body: bytes
    written_at: datetime | None = None


def download(file: PublicFile) -> Downloaded:
    """The whole file; blocks for ``total_s`` and one ``timeout_s`` at most. Raises CloudError."""
    end = time.monotonic() + file.total_s
    try:
        with request.build_opener(_WebRedirects).open(
            _asking(file.url), timeout=file.timeout_s
        ) as reply:
            return Downloaded(_body(reply, file, end), _written_at(reply))
    except HTTPError as error:
        error.close()
        why = "throttled" if error.code in (429, 503) else "reply"
        said = redact(error.reason)
        raise CloudError(
            file.what, why, f"the server says {error.code} {said}", file.again
        ) from None
    except (URLError, OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):
            raise file._unreached("timeout", f"no answer within {file.timeout_s:g} s") from None
        words = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
        raise file._unreached("network", redact(words) or type(reason).__name__) from None


def shown(url: str) -> str:
    """An address without user, password and signature."""
    return redact(url.partition("?")[0])


def _asking(url: str) -> request.Request:
    # Nothing but these: urllib knows no .netrc and keeps no cookies.
    return request.Request(url, headers={"User-Agent": "deepvm", "Accept-Encoding": "gzip"})


def _body(reply: HTTPResponse, file: PublicFile, end: float) -> bytes:
    raw = 0
    body = bytearray()
    packed = reply.headers.get("Content-Encoding", "").strip().lower() == "gzip"
    unpacker = zlib.decompressobj(_GZIP)
    # read1() returns what has come, where read() would wait for a full block from a slow server.
    while piece := reply.read1(2**16):
        raw += len(piece)
        try:
            # A small file may unpack to any size, so it is cut off at the limit.
            body += unpacker.decompress(piece, file.most_bytes + 1 - len(body)) if packed else piece
        except zlib.error:
            raise file.unreadable("the file is not packed as the server says") from None
        if len(body) > file.most_bytes:
            raise file.unreadable(f"the file is larger than {file.most_bytes // 2**20} MiB")
        if time.monotonic() > end:
            raise file._unreached("timeout", f"the file was not complete after {file.total_s:g} s")
    promised = reply.headers.get("Content-Length", "")
    if promised.isdigit() and raw < int(promised):
        raise file._unreached("network", f"the file broke off after {raw} of {promised} bytes")
    if packed and not unpacker.eof:
        raise file._unreached("network", f"the file broke off after {raw} packed bytes")
    return bytes(body)


def _written_at(reply: HTTPResponse) -> datetime | None:
    try:
        return parsedate_to_datetime(reply.headers.get("Last-Modified", "")).astimezone(
            timezone.utc
        )
    except (ValueError, TypeError, OverflowError):
        return None


class _WebRedirects(request.HTTPRedirectHandler):
    """Follows redirects within the web, never to local files, never from https to http."""

    def redirect_request(
        self,
        req: request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> request.Request | None:
        if not _on_the_web(newurl) or (
            req.type == "https" and urlsplit(newurl).scheme.lower() != "https"
        ):
            fp.close()
            raise URLError(f"the server points to {shown(newurl)}, which is not followed")
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        # urllib's own would carry the password of a proxy on to a host that no proxy stands before.
        return None if followed is None else _asking(followed.full_url)


def _on_the_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    # urllib would take user and password for a part of the host's name, and show them in its error.
    plain = "@" not in parts.netloc and url.isprintable() and " " not in url
    return parts.scheme.lower() in ("https", "http") and bool(parts.hostname) and plain
