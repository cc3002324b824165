"""A real agent in a process of its own, and a controller that gives the orders of a test, over the
real wire.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.jobs.runs import until

from deepvm.jobs.controller.api import listening, server_of
from deepvm.jobs.wire import Receiver, new_secret, secret_of, token_of

SPEC: dict[str, Any] = {
    "name": "job",
    "train": "true;",
    "launcher": "direct",
    "env": {},
    "setup": "",
    "save_policy": "thesis",
    "keep": 2,
    "save_every_steps": None,
    "data": {},
    "per_machine": 1,
    "orphan_after_s": 600.0,
    "grace_s": 120.0,
    "tiers": [],
    "has_code": False,
}


class Commander:
    """Answers the agents of one job, and remembers what they report and how they beat."""

    def __init__(self, **spec: Any) -> None:
        self.secret = new_secret()
        self.spec = {**SPEC, **spec}
        self.orders: dict[str, dict[str, Any]] = {}
        self.reports: list[dict[str, Any]] = []
        self.beats: list[dict[str, Any]] = []
        self._receiver = Receiver(self.secret)
        bound = listening("127.0.0.1", 0)
        self._server = server_of(self, self._receiver)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve([bound])), daemon=True
        )
        self._thread.start()
        until(lambda: self._server.started)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"

    async def job(self, machine: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**self.spec, "sealed_token": self._receiver.hidden(token_of(self.secret), message)}

    async def code(self, machine: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
        raise KeyError("no code")

    async def beat(self, machine: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
        self.beats.append({"machine": machine, "at": time.monotonic(), **message})
        until_s = time.monotonic() + min(message["wait_s"], 0.5)
        while True:
            orders = {
                "digest": "",
                "shutdown": False,
                "generation": 0,
                **self.orders.get(machine, {}),
            }
            orders["digest"] = json.dumps(orders)
            if orders["digest"] != message["seen"]:
                return orders
            if time.monotonic() >= until_s:
                return {"same": True}
            await asyncio.sleep(0.02)

    async def report(self, machine: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
        known = {report["of"] for report in self.reports}
        self.reports += [
            {"machine": machine, **e} for e in message["events"] if e["of"] not in known
        ]
        return {}

    async def schedule(self, machine: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    async def command(self, machine: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def gone(self, machine: str) -> None:
        pass

    def run(self, generation: int, *machines: str) -> None:
        """Have machines train together."""
        each = self.spec["per_machine"]
        ranks = [{"machine": name, "processes": each, "address": "127.0.0.1"} for name in machines]
        for name in machines:
            self.orders[name] = {
                "generation": generation,
                "ranks": ranks,
                "tiers": self.spec["tiers"],
                "port": 29999,
            }

    def heard(self, kind: str) -> list[dict[str, Any]]:
        """The reports of a kind."""
        return [report for report in self.reports if report["event"] == kind]

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)


@contextmanager
def running(
    where: Commander, folder: Path, machine: str = "m1", **more: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """An agent; ``more``: settings, ``metadata``: the URL of its metadata service, ``env``: more of
    its environment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "machine": machine,
        "secret": secret_of(where.secret, machine).hex(),
        "controller": where.url,
    }
    metadata, env = more.pop("metadata", "http://127.0.0.1:9"), more.pop("env", {})
    (folder / "settings.json").write_text(json.dumps({**settings, "beat_s": 0.5, **more}))
    words = [
        sys.executable,
        "-m",
        "deepvm.jobs.agent.main",
        str(folder / "settings.json"),
        metadata,
    ]
    with (folder / "console").open("wb") as console:
        # As on any cloud
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        environ = {**os.environ, "PATH": path, **env}
        process = subprocess.Popen(words, env=environ, stdout=console, stderr=console)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        for place in Path("/proc").iterdir():  # trainers have sessions of their own
            if place.name.isdigit() and int(place.name) != os.getpid():
                try:
                    if (
                        str(folder).encode()
                        in (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
                    ):
                        os.kill(int(place.name), signal.SIGKILL)
                except OSError:
                    continue
