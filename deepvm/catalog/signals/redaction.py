"""Messages of clouds, proxies and servers on one short line, without secrets."""

import os
import re

_SECRET_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
)
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
# Shorter values are no keys, and replacing every "x" would make a message unreadable.
_MIN_SECRET_LENGTH = 4
_KEY_ID = re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{12,}\b")
_USER_IN_URL = re.compile(r"://[^\s\"']*@")
_ENCODED_OR_MARKUP = re.compile(r"\.?\s*Encoded authorization failure message.*|<[^>]*>", re.DOTALL)
_MAX_LENGTH = 240


def secrets() -> tuple[str, ...]:
    """Secrets in the environment: keys, tokens, passwords of proxies."""
    keys = [os.environ.get(name, "") for name in _SECRET_VARIABLES]
    for name in _PROXIES:
        user = os.environ.get(name, "").rpartition("@")[0].rpartition("//")[2]
        keys.append(user.partition(":")[2])
    return tuple(key for key in keys if len(key) >= _MIN_SECRET_LENGTH)


def redact(message: object) -> str:
    """One short line of a foreign message, without secrets of the environment."""
    text = str(message)
    for secret in secrets():
        text = text.replace(secret, "***")
    text = _USER_IN_URL.sub("://***@", _KEY_ID.sub("***", text))
    text = _ENCODED_OR_MARKUP.sub(" ", text)
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(line) > _MAX_LENGTH:
        return f"{line[: _MAX_LENGTH - 4]} ..."
    return line
