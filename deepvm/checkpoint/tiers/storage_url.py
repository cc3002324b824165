"""What the URL of a folder or a bucket means: one reading for trainers, memory nodes and commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from deepvm.errors import RequestError

_FILE = re.compile(r"(?i:file)://(?:localhost)?(?P<path>/[^\0]*)")
_S3 = re.compile(r"(?i:s3)://(?P<bucket>[^/\0]+)(?P<prefix>/[^\0]*)?")


class Bucket(NamedTuple):
    """A bucket, or the part of one whose names begin with a prefix; the prefix has no slash at its ends."""

    name: str
    prefix: str


def parse_place(url: str, option: str) -> Path | Bucket:
    """The folder of ``file:///folder``, or the bucket of ``s3://bucket/prefix``.

    In a folder's name ``%20`` is a space; a prefix is taken as it stands, as AWS's own command does.

    Args:
        url: where.
        option: what errors call it.

    Raises:
        RequestError: it is neither, or has a query or a fragment: what stands behind ``?`` or ``#`` is no part of the
            name, and dropping it would write elsewhere.
    """
    file, s3 = _FILE.fullmatch(url), _S3.fullmatch(url)
    if (file or s3) and ("?" in url or "#" in url):
        raise RequestError(option, url, "a URL without ? and #; in a folder's name write %3F and %23")
    if file and "\0" not in (path := unquote(file["path"])):
        return Path(path)
    if s3:
        return Bucket(s3["bucket"], (s3["prefix"] or "").strip("/"))
    raise RequestError(option, url, "file:///folder, with three slashes, or s3://bucket/prefix")
