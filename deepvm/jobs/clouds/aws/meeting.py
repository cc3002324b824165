"""Rendezvous of an exported plan's VMs: AWS Systems Manager parameters under ``/deepvm/JOB/``.

Their user data runs ``python -m deepvm.jobs.clouds.aws.meeting --job JOB ACT ... FILE``:

- ``keep``: makes the job's token, unless it exists, and announces this VM as one that keeps
  checkpoints; writes its address;
- ``join``: waits for the token and for all keepers to answer; writes their addresses;
- ``lead``: without keepers, agrees on the VM where all meet; writes the term, its address, and
  whether it is this one;
- ``fetch``: reads the code from a bucket.
"""

import argparse
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from deepvm.catalog.clouds.aws.client import ApiCall, Aws
from deepvm.errors import CloudError
from deepvm.io.atomic_write import write_private
from deepvm.jobs.clouds.aws.s3_read import metadata, read
from deepvm.jobs.loggers import jobs_log as log

LOOK_S = 3.0
ANSWER_S = 2.0
SILENT_S = 120.0  # A leader whose port has been silent for so long is gone, or never came
_MISSING = "ParameterNotFound"
_EXISTS = "ParameterAlreadyExists"
_T = TypeVar("_T")


class Rendezvous:
    """The parameters of a job, retried for ``wait_s``: a new VM's role is known with a delay."""

    def __init__(self, job: str, wait_s: float, look_s: float = LOOK_S) -> None:
        self._path = f"/deepvm/{job}"
        self._wait_s = wait_s
        self._look_s = look_s
        self._end_s = time.monotonic() + wait_s
        self.region = self._until(_region)
        self.address = self._until(lambda: metadata("local-ipv4"))
        self._aws = Aws(region=self.region)

    def keep(self, token_file: str) -> str:
        def made() -> bool | None:
            if self._fetch_token(token_file):
                return True
            self._put("token", secrets.token_hex(32), "SecureString")
            return None  # read it back: another node may have been faster

        self._until(made, lambda: f"{self._path}/token could not be made")
        machine = self._until(lambda: metadata("instance-id"))
        self._until(lambda: self._put(f"nodes/{machine}", self.address, "String", Overwrite=True))
        return self.address

    def join(self, token_file: str, keepers: int, port: int) -> list[str]:
        """Addresses of the keepers, once all answer; the token is in its file then."""
        known: list[str] = []

        def met() -> list[str] | None:
            known[:] = sorted(self._below("nodes").values())
            alive = [address for address in known if _answers(address, port)]
            if self._fetch_token(token_file) and len(alive) == keepers:
                return alive
            return None

        return self._until(
            met,
            lambda: (
                f"{keepers} keepers of checkpoints must answer on TCP port {port};"
                f" {self._path}/nodes names {', '.join(known) or 'no VM'}: see their log, and that"
                " the security group lets the VMs reach each other"
            ),
        )

    def lead(self, after: int, port: int) -> tuple[int, str, bool]:
        """The first term after ``after`` whose leader answers: number, address, is it us."""
        seen = after
        since_s = time.monotonic()

        def found() -> tuple[int, str, bool] | None:
            nonlocal after, seen, since_s
            terms = {
                int(name): host for name, host in self._below("hosts").items() if int(name) > after
            }
            if not terms:
                # Only one VM gets a term: a parameter that exists is not overwritten.
                if self._put(f"hosts/{after + 1:06}", self.address, "String") == _EXISTS:
                    return None
                return after + 1, self.address, True
            term = max(terms)
            if terms[term] == self.address or _answers(terms[term], port):
                return term, terms[term], terms[term] == self.address
            if term != seen:
                seen = term
                since_s = time.monotonic()
            elif time.monotonic() - since_s > SILENT_S:
                after = term
            return None

        return self._until(
            found,
            lambda: (
                f"no VM leads: nothing answers on TCP port {port} of those in {self._path}/hosts"
            ),
        )

    def fetch(self, url: str) -> bytes:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        return self._until(lambda: read(self.region, bucket, key))

    def _fetch_token(self, file: str) -> bool:
        found = self._ask("GetParameter", _MISSING, Name=f"{self._path}/token", WithDecryption=True)
        if found == _MISSING:
            return False
        write_private(Path(file), found["Parameter"]["Value"])
        return True

    def _below(self, name: str) -> dict[str, str]:
        path = f"{self._path}/{name}/"
        rows = self._aws.pages(ApiCall("ssm", "GetParametersByPath", self.region), Path=path)
        return {row["Name"].removeprefix(path): row["Value"] for row in rows}

    def _put(self, name: str, value: str, kind: str, **options: Any) -> Any:
        name = f"{self._path}/{name}"
        return self._ask("PutParameter", _EXISTS, Name=name, Value=value, Type=kind, **options)

    def _ask(self, operation: str, *answers: str, **parameters: Any) -> Any:
        return self._aws.call(ApiCall("ssm", operation, self.region), answers, **parameters)

    def _until(self, ask: Callable[[], _T | None], missing: Callable[[], str] = str) -> _T:
        """What ``ask`` returns once it is not None; ends the process when the time is over."""
        reported = ""
        while True:
            try:
                found = ask()
                if found is not None:
                    return found
                reason = missing()
            except (CloudError, OSError, ValueError, LookupError) as error:
                # A permission that is missing looks like a role that is not known yet
                reason = f"{self._path}: {error}"
                if reason != reported:
                    reported = reason
                    log.warning("%s; trying again", reason)
                # boto3 would remember that there were no credentials when it looked first.
                self._aws = Aws(region=getattr(self, "region", ""))
            if time.monotonic() > self._end_s:
                sys.exit(f"after {self._wait_s:.0f} s: {reason}")
            time.sleep(self._look_s)


def _region() -> str:
    return (
        os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
        or metadata("placement/region")
    )


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=ANSWER_S).close()
    except OSError:
        return False
    return True


def main(words: list[str] | None = None) -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="meeting")
    parser.add_argument("--job", required=True)
    parser.add_argument("--wait", type=float, default=1800.0, help="seconds")
    parser.add_argument("act", choices=("keep", "join", "lead", "fetch"))
    parser.add_argument("given", nargs="+", metavar="WORD")
    asked = parser.parse_args(words)
    *given, file = asked.given
    meeting = Rendezvous(asked.job, asked.wait)
    match asked.act:
        case "fetch":
            data = meeting.fetch(*given)
        case "keep":
            data = f"{meeting.keep(*given)}\n".encode()
        case "join":
            token, keepers, port = given
            data = "".join(f"{a}\n" for a in meeting.join(token, int(keepers), int(port))).encode()
        case _:
            term, host, ours = meeting.lead(*map(int, given))
            data = f"{term} {host} {str(ours).lower()}\n".encode()
    Path(file).write_bytes(data)


if __name__ == "__main__":
    main()
