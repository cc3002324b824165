"""The pages of jobs, served as ``deepvm jobs serve`` serves them, in a process of its own."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Site:
    """A server; ``link`` is the address that it has printed."""

    def __init__(self, data: Path, *words: str) -> None:
        self._open: list[http.client.HTTPConnection | http.client.HTTPResponse] = []
        env = {**os.environ, "DEEPVM_DATA_DIR": str(data)}
        command = [sys.executable, "-m", "deepvm.cli.main", "jobs", "serve", *words]
        self.process = subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()
        found = re.fullmatch(r"http://(.+):(\d+)/\?token=([\w-]{40,})", self.link)
        assert found, self.process.communicate()
        self.port, self.token = int(found[2]), found[3]
        self.cookie = (
            self.get(f"/?token={self.token}")[1].getheader("set-cookie", "").partition(";")[0]
        )

    def open(self, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        self._open += [connection, answer]
        return answer

    def get(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[bytes, http.client.HTTPResponse]:
        others, self._open = self._open, []
        answer = self.open(path, method, **headers)
        found = answer.read(), answer
        self.leave()
        self._open = others
        return found

    def leave(self) -> None:
        """Close what :meth:`open` has opened."""
        for one in self._open:
            one.close()
        self._open.clear()


@contextmanager
def serving(data: Path, *words: str) -> Iterator[Site]:
    """A server while it is needed."""
    site = Site(data, *words)
    try:
        yield site
    finally:
        site.leave()
        site.process.kill()
        site.process.communicate()
