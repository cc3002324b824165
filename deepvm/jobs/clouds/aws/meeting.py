"""Rendezvous of an exported plan's VMs: AWS Systems Manager parameters under ``/deepvm/JOB/``.

Their user data runs ``python -m deepvm.jobs.clouds.aws.meeting --job JOB``:

- ``keep``: makes the job's token, unless it exists, announces this VM as one that keeps versions;
  tells its address;
- ``join``: waits for the token and for all keepers to answer; tells their addresses, the same first
  one on all VMs;
- ``lead``: without keepers, agrees on the VM where all meet; tells the term, its address, and
  whether it is this one;
- ``fetch``: reads the code from a bucket.

What comes is written into the file that the command line names last.

Parameters that an earlier cluster has left do no harm: an address counts only if something answers
there.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from deepvm.catalog.clouds.aws.client import Aws
from deepvm.catalog.clouds.aws.errors import ApiCall
from deepvm.errors import CloudError
from deepvm.io.atomic_write import write_private
from deepvm.jobs.clouds.aws.s3_read import metadata, read

LOOK_S = 3.0
ANSWER_S = 2.0
SILENT_S = 120.0
"""A leader whose port has been silent for so long is gone, or never came."""
_MISSING = "ParameterNotFound"
_EXISTS = "ParameterAlreadyExists"
_T = TypeVar("_T")

log = logging.getLogger("deepvm.jobs")


class Rendezvous:
    """The parameters of a job, retried for ``wait_s``: a new VM's role is known with a delay."""

    def __init__(self, job: str, wait_s: float, look_s: float = LOOK_S) -> None:
        self._path = f"/deepvm/{job}"
        self._wait_s = wait_s
        self._look_s = look_s
        self._end_s = time.monotonic() + wait_s
        self.region = self._patiently(_region)
        self.address = self._patiently(lambda: metadata("local-ipv4"))
        self._aws = Aws(region=self.region)

    def keep(self, token_file: str) -> str:
        """Make the token or fetch it, and announce this VM; its address."""

        def made() -> bool:
            if self._fetch_token(token_file):
                return True
            self._put("token", secrets.token_hex(32), "SecureString")
            return False  # read it back: another node may have been faster

        self._until(made, f"{self._path}/token could not be made")
        machine = self._patiently(lambda: metadata("instance-id"))
        self._patiently(
            lambda: self._put(f"nodes/{machine}", self.address, "String", Overwrite=True)
        )
        return self.address

    def join(self, token_file: str, keepers: int, port: int) -> list[str]:
        """Addresses of the keepers, once all answer; the token is in its file then."""
        known: list[str] = []

        def met() -> list[str]:
            known[:] = sorted(self._below("nodes").values())
            alive = [address for address in known if _answers(address, port)]
            if self._fetch_token(token_file) and len(alive) == keepers:
                return alive
            return []

        def missing() -> str:
            there = ", ".join(known) or "no VM"
            return (
                f"{keepers} keepers of checkpoints must answer on TCP port {port};"
                f" {self._path}/nodes names {there}: see their log, and that the security group"
                " lets the VMs reach each other"
            )

        return self._until(met, missing)

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
            found, f"no VM leads: nothing answers on TCP port {port} of those in {self._path}/hosts"
        )

    def fetch(self, url: str) -> bytes:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        return self._patiently(lambda: read(self.region, bucket, key))

    def _fetch_token(self, file: str) -> bool:
        found = self._ask("GetParameter", _MISSING, Name=f"{self._path}/token", WithDecryption=True)
        if found == _MISSING:
            return False
        write_private(Path(file), found["Parameter"]["Value"])
        return True

    def _below(self, name: str) -> dict[str, str]:
        question = ApiCall("ssm", "GetParametersByPath", self.region)
        path = f"{self._path}/{name}/"
        rows = self._aws.pages(question, Path=path)
        return {row["Name"].removeprefix(path): row["Value"] for row in rows}

    def _put(self, name: str, value: str, kind: str, **options: Any) -> Any:
        name = f"{self._path}/{name}"
        return self._ask("PutParameter", _EXISTS, Name=name, Value=value, Type=kind, **options)

    def _ask(self, operation: str, *answers: str, **parameters: Any) -> Any:
        return self._aws.call(ApiCall("ssm", operation, self.region), answers, **parameters)

    def _until(self, ask: Callable[[], _T | None], missing: str | Callable[[], str]) -> _T:
        """What ``ask`` returns once it is true; ends the process when the time is over."""
        while True:
            found = self._patiently(ask)
            if found:
                return found
            if time.monotonic() > self._end_s:
                sys.exit(
                    f"after {self._wait_s:.0f} s:"
                    f" {missing if isinstance(missing, str) else missing()}"
                )
            time.sleep(self._look_s)

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        reported = ""
        while True:
            try:
                return ask()
            except (CloudError, OSError, ValueError, LookupError) as error:
                # A permission that is missing looks like a role that is not known yet
                if str(error) != reported:
                    reported = str(error)
                    log.warning("%s: %s; trying again", self._path, reported)
                if time.monotonic() > self._end_s:
                    sys.exit(f"after {self._wait_s:.0f} s: {self._path}: {error}")
                time.sleep(self._look_s)
                # boto3 would remember that there were no credentials when it looked first.
                self._aws = Aws(region=getattr(self, "region", ""))


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
    if asked.act == "fetch":
        Path(file).write_bytes(meeting.fetch(*given))
        return
    if asked.act == "keep":
        text = meeting.keep(*given)
    elif asked.act == "join":
        token, keepers, port = given
        text = "\n".join(meeting.join(token, int(keepers), int(port)))
    else:
        term, host, ours = meeting.lead(*map(int, given))
        text = f"{term} {host} {str(ours).lower()}"
    Path(file).write_text(f"{text}\n")


if __name__ == "__main__":
    main()
