"""Code of a git repository: a name is resolved to a commit once, at submission."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from deepvm.errors import DataError, RequestError
from deepvm.jobs.storage.code_archive import pack

GIT = "git:"
FORM = "git: URL@REF, such as git:https://github.com/me/training@main"
_ASK_S = 60.0
_FETCH_S = 900.0


@dataclass(frozen=True)
class GitCode:
    """A repository and a name in it: a branch, a tag, a commit; ``HEAD`` without one."""

    url: str
    ref: str = "HEAD"

    @property
    def shown(self) -> str:
        """Without passwords and tokens."""
        return f"{GIT}{public(self.url)}@{self.ref}"


def parse(code: str) -> GitCode | None:
    """What ``code:`` of a job file means, None if it is a folder. Raises RequestError."""
    if not code.startswith(GIT):
        return None
    text = code.removeprefix(GIT).strip()
    scheme, mark, rest = text.partition("://")
    # An @ in front of the path belongs to the user: https://me@host/path, git@host:path.
    if mark:
        begin = len(scheme) + len(mark) + rest.find("/")
    else:
        begin = text.find(":") + 1
    at = text.rfind("@")
    if at >= max(begin, 0):
        url, ref = (text[:at], text[at + 1 :])
    else:
        url, ref = (text, "HEAD")
    if (
        " " in text
        or not url
        or not ref
        or url.startswith("-")
        or ref.startswith("-")
        or not text.isprintable()
    ):
        raise RequestError("code", public(code), FORM)
    return GitCode(url, ref)


def public(url: str) -> str:
    """A URL without what is secret in it; the user's name of an SSH address is not."""
    found = urlsplit(url.removeprefix(GIT))
    if not found.netloc or "@" not in found.netloc:
        return url
    user, _, host = found.netloc.rpartition("@")
    kept = ""
    if found.scheme == "ssh":
        kept = f"{user.partition(':')[0]}@"
    return f"{GIT if url.startswith(GIT) else ''}{urlunsplit(found._replace(netloc=kept + host))}"


def fetch_code(code: GitCode, target: Path) -> str:
    """Pack the commit that a name means now; returns it.

    Raises RequestError: there is no git, or no such name; DataError: the repository cannot be read;
    OSError.
    """
    with tempfile.TemporaryDirectory(prefix="deepvm-code-") as folder:
        here = ["-C", folder, "-c", "core.hooksPath=/dev/null"]
        _git(code, ["init", "--quiet", "--template=", folder], _ASK_S)
        _git(
            code,
            [*here, "fetch", "--quiet", "--depth", "1", "--", code.url, code.ref],
            _FETCH_S,
        )
        _git(code, [*here, "checkout", "--quiet", "FETCH_HEAD"], _FETCH_S)
        commit = _git(code, [*here, "rev-parse", "HEAD"], _ASK_S).strip()
        pack(Path(folder), target)
    return commit


def _git(code: GitCode, words: Sequence[str], limit_s: float) -> str:
    environ = {k: v for k, v in os.environ.items() if k not in _OF_OTHERS} | _QUIET
    environ["GIT_SSH_COMMAND"] = environ.get("GIT_SSH_COMMAND", "ssh") + " -o BatchMode=yes"
    try:
        done = subprocess.run(
            ["git", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            env=environ,
            start_new_session=True,  # no terminal, on which something could ask for a password
        )
    except FileNotFoundError:
        raise RequestError(
            "code", code.shown, "a folder, as there is no git here; install git for a repository"
        ) from None
    except subprocess.TimeoutExpired:
        raise DataError(
            f"code: {code.shown}: git has not answered for {limit_s:.0f} s; try again, or clone it"
        ) from None
    if done.returncode and b"couldn't find remote ref" in done.stderr:
        allowed = "a branch, tag or commit that is there; 'git ls-remote URL' lists them"
        raise RequestError("code", code.shown, allowed)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").splitlines()
        why = next(filter(str.strip, lines), f"exit code {done.returncode}")
        place = urlsplit(code.url)
        credentials, _, host = place.netloc.rpartition("@")
        if place.scheme != "ssh" and credentials:
            why = why.replace(f"{credentials}@{host}", host)
            secret = place.password or place.username or ""
            why = why.replace(secret, "***") if secret else why
        raise DataError(
            f"code: {code.shown}: {why}; no password is asked for: use a credential helper,"
            " or an SSH key of an agent, or clone it and name the folder"
        )
    return done.stdout.decode("utf-8", "replace")


_QUIET = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GCM_INTERACTIVE": "never",
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    "LC_ALL": "C",
}
_OF_OTHERS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
