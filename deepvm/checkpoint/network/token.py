"""The token that trainers and a memory node share, and tokens of single jobs derived from it.

The node's own token gives access to the versions of all jobs. A job's token, the HMAC-SHA256 of its
name under the node's token, is good for that job alone, including its parts on several nodes: with
it one can neither read nor overwrite the versions of others, nor pose as the node to them, nor find
the node's token. It still uses a share of the node's memory, connections and disk, as any trainer,
and is revoked only by a new token for the node.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.network.protocol import job_key
from deepvm.errors import RequestError

TOKEN_VARIABLE = "DEEPVM_TOKEN_FILE"
WEAK_VARIABLE = "DEEPVM_ALLOW_WEAK_TOKEN"
_TOKEN_ADVICE = (
    "set it to the name of a file with the memory node's token, that of its --token-file"
)
_LEAST_BYTES = 16  # a shorter one may be guessed
_MOST_BYTES = 4096
_OF_JOB = re.compile(rb"deepvm-job-token ([!-~]{1,64}) ([0-9a-f]{64})")


@dataclass(frozen=True)
class Token:
    """A secret, valid for one ``job`` or, if that is empty, for all."""

    secret: bytes = field(repr=False)
    job: str = ""

    def of_job(self, job: str) -> Token:
        """The token of a job.

        Raises RequestError: an invalid name, or this is a job's token itself.
        """
        if self.job:
            raise RequestError("token_file", f"the token of job {self.job}", "the node's own token")
        return Token(job_key(self.secret, check_job(job)), job)

    def to_text(self) -> str:
        return f"deepvm-job-token {self.job} {self.secret.hex()}"


def read_token(
    path: Path | str, *, weak: bool | None = None, allowing: str = f"{WEAK_VARIABLE}=1"
) -> Token:
    """The token in a file, without white space around it.

    Raises RequestError: there is none, or a weak one.

    ``weak``: accept a short token, or one that others on this machine can read; None: what
    ``DEEPVM_ALLOW_WEAK_TOKEN`` says. ``allowing``: how to allow that, for errors.
    """
    try:
        with open(path, "rb") as stream:
            token = stream.read(_MOST_BYTES + 1).strip()
            if weak_allowed(weak):
                open_to = ""
            else:
                open_to = _open_to(os.fstat(stream.fileno()), Path(path))
    except OSError as error:
        raise RequestError(
            "token_file", str(path), f"a file with the token ({error.strerror or error})"
        ) from None
    found = _OF_JOB.fullmatch(token)
    allowed = ""
    if not token or len(token) > _MOST_BYTES:
        allowed = (
            f"a file with a token of {_LEAST_BYTES} to {_MOST_BYTES} bytes; openssl rand -hex 32"
        )
    elif open_to:
        allowed = f"a file that {open_to} cannot read or change (chmod 600 {path}), or {allowing}"
    elif found is None and len(token) < _LEAST_BYTES and not weak_allowed(weak):
        guessed = f"and not {len(token)}, which may be guessed (openssl rand -hex 32)"
        allowed = f"a file with a token of at least {_LEAST_BYTES} bytes, {guessed}, or {allowing}"
    if allowed:
        raise RequestError("token_file", str(path), allowed)
    if found is None:
        return Token(token)
    return Token(bytes.fromhex(found[2].decode()), found[1].decode())


def weak_allowed(weak: bool | None = None) -> bool:
    """Whether weak tokens are accepted, by ``weak`` or else by the environment."""
    if weak is None:
        return os.environ.get(WEAK_VARIABLE) == "1"
    return weak


def token_from_environment() -> Token:
    """The token in the file that ``DEEPVM_TOKEN_FILE`` names. Raises RequestError."""
    path = os.environ.get(TOKEN_VARIABLE, "")
    if not path:
        raise TokenMissingError(TOKEN_VARIABLE, path, _TOKEN_ADVICE)
    try:
        return read_token(path)
    except RequestError as error:
        raise RequestError(TOKEN_VARIABLE, path, f"{error.allowed}; {_TOKEN_ADVICE}") from None


class TokenMissingError(RequestError):
    """No file was named: there is no value that could be shown."""

    def __str__(self) -> str:
        return self.about(self.option)


def _open_to(status: os.stat_result, path: Path) -> str:
    """Who else on this machine can read a file or change it, empty if none.

    A group may read what belongs to root, as with PostgreSQL's keys: Kubernetes (fsGroup) and
    systemd rely on it.
    """
    if status.st_uid == 0:
        closed_to = stat.S_IWGRP
    else:
        closed_to = stat.S_IRGRP | stat.S_IWGRP
    found = status.st_mode & (closed_to | stat.S_IROTH | stat.S_IWOTH)
    if not stat.S_ISREG(status.st_mode) or not found:
        return ""
    for above in path.resolve().parents:
        # Which only its owner may enter
        if not above.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            return ""
    if found & (stat.S_IROTH | stat.S_IWOTH):
        return "others"
    return "its group"
