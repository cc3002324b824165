"""The code of a job: a folder, or a name in a git repository, packed where it is submitted."""

import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from deepvm.core.units import format_bytes
from deepvm.errors import DataError, RequestError
from deepvm.io.atomic_write import hidden_path
from deepvm.records import dataclass

MOST_BYTES = 500_000_000  # Of code; more is data
MOST_FILES = 200_000
GIT = "git:"
FORM = "git: URL@REF, such as git:https://github.com/me/training@main"
_ASK_S = 60.0
_FETCH_S = 900.0
_QUIET = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GCM_INTERACTIVE": "never",
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    "LC_ALL": "C",
}
_OF_OTHERS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


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
    begin = text.find(":") + 1
    if mark:
        begin = len(scheme) + len(mark) + rest.find("/")
    url, ref = text, "HEAD"
    at = text.rfind("@")
    if at >= max(begin, 0):
        url, ref = text[:at], text[at + 1 :]
    wrong = not url or not ref or url.startswith("-") or ref.startswith("-")
    if wrong or " " in text or not text.isprintable():
        raise RequestError("code", public(code), FORM)
    return GitCode(url, ref)


def public(url: str) -> str:
    """A URL without what is secret in it; the user's name of an SSH address is not."""
    found = urlsplit(url.removeprefix(GIT))
    if not found.netloc or "@" not in found.netloc:
        return url
    user, _, host = found.netloc.rpartition("@")
    kept = f"{user.partition(':')[0]}@" if found.scheme == "ssh" else ""
    return f"{GIT if url.startswith(GIT) else ''}{urlunsplit(found._replace(netloc=kept + host))}"


def fetch_code(code: GitCode, target: Path) -> str:
    """Pack the commit that a name means; returns it. Raises RequestError, DataError, OSError."""
    with tempfile.TemporaryDirectory(prefix="deepvm-code-") as folder:
        here = ["-C", folder, "-c", "core.hooksPath=/dev/null"]
        _git(code, ["init", "--quiet", "--template=", folder], _ASK_S)
        _git(code, [*here, "fetch", "--quiet", "--depth", "1", "--", code.url, code.ref], _FETCH_S)
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
        allowed = "a folder, as there is no git here; install git for a repository"
        raise RequestError("code", code.shown, allowed) from None
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


def pack(folder: Path, target: Path, without: Path | None = None) -> None:
    """An archive of what git would commit, else all files. Raises RequestError, OSError."""
    left_out = without and without.stat()
    # Sockets, pipes and devices are left out; it is refused if too large, or a link leads out of it
    names = _of_git(folder)
    if names is None:
        names = list(_all(folder))
    size = 0
    rows = []
    for name in names:
        path = folder / name
        if not os.path.lexists(path):
            continue
        status = path.lstat()
        if left_out and os.path.samestat(status, left_out):
            continue
        if stat.S_ISREG(status.st_mode):
            size += status.st_size
        elif stat.S_ISLNK(status.st_mode) and _leads_out(name, os.readlink(path)):
            allowed = (
                "links within the folder: name it in .gitignore, or put what it leads to under"
                " data: in the job file"
            )
            raise RequestError("code", name, allowed)
        elif not (stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            continue
        rows.append(name)
        if size > MOST_BYTES or len(rows) > MOST_FILES:
            allowed = (
                f"at most {format_bytes(MOST_BYTES)} and {MOST_FILES} files of code: name what is"
                " no code in .gitignore, and put data under data: in the job file"
            )
            raise RequestError("code", str(folder), allowed)
    with hidden_path(target) as hidden:
        hidden.touch(0o600)
        with tarfile.open(hidden, "w:gz", compresslevel=1) as archive:
            for name in rows:
                archive.add(folder / name, name, recursive=False)
        hidden.replace(target)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack what :func:`pack` has made and the controller has signed. Raises DataError."""
    # Python before 3.10.12 and 3.11.4 has no filters
    options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        folder.mkdir(exist_ok=True)
        with tarfile.open(archive, "r:gz") as found:
            found.extractall(folder, **options)  # noqa: S202  see above
    except (OSError, tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(
            f"the archive cannot be unpacked: {error}; give machines larger disks, or submit"
            " the job again"
        ) from error


def _leads_out(name: str, link: str) -> bool:
    place = os.path.normpath(os.path.join(os.path.dirname(name), link))
    return os.path.isabs(link) or place == ".." or place.startswith("../")


def _all(folder: Path) -> Iterator[str]:
    """Every name in a folder, folders before what is in them; links are not followed."""
    for top, folders, files in os.walk(folder, onerror=_raise):
        for name in sorted([*folders, *files]):
            yield os.path.relpath(os.path.join(top, name), folder)


def _raise(error: OSError) -> None:
    raise error


def _of_git(folder: Path) -> list[str] | None:
    with suppress(OSError, subprocess.TimeoutExpired):
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(words, cwd=folder, capture_output=True, timeout=60)
        if not done.returncode:
            return [n for n in done.stdout.decode("utf-8", "surrogateescape").split("\0") if n]
    return None
