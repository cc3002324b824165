"""Foreign messages without secrets: what a cloud, a proxy or a server says may quote keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

_SECRET_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"),
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
)
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
# Shorter values are no keys, and replacing every "x" would make a message unreadable.
_SHORTEST_SECRET = 4
_KEY_ID = re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{12,}\b")
_USER_IN_URL = re.compile(r"://[^\s\"']*@")
_LONGEST_DETAIL = 240


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Secrets in the environment: keys, tokens, passwords of proxies."""
    keys = [environ[name] for name in _SECRET_VARIABLES if environ.get(name)]
    users = [
        environ[name].rpartition("@")[0].rpartition("//")[2]
        for name in _PROXIES
        if environ.get(name)
    ]
    return (*keys, *(user.partition(":")[2] for user in users if ":" in user))


def redact(text: object, secrets: Iterable[str] = ()) -> str:
    """One short line of a foreign message, without secrets.

    Removes the given values, whatever looks like the id of a key, user and password of URLs,
    mark-up, and the long encoded part of AWS's refusals.
    """
    line = str(text)
    for value in sorted(set(secrets), key=len, reverse=True):
        if len(value.strip()) >= _SHORTEST_SECRET:
            for form in (value, value.strip(), quote(value, safe=""), quote(value)):
                line = line.replace(form, "***")
    line = _KEY_ID.sub("***", line)
    line = _USER_IN_URL.sub("://***@", line)
    line = re.split(r"\s*\.?\s*Encoded authorization failure message", line, maxsplit=1)[0]
    line = re.sub(r"<[^>]*>", " ", line)
    line = " ".join("".join(c if c.isprintable() else " " for c in line).split())
    return line if len(line) <= _LONGEST_DETAIL else f"{line[: _LONGEST_DETAIL - 4]} ..."
