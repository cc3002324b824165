"""The first process of a local machine: its metadata service, its agent, and its end."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from deepvm.io.atomic_write import write_json
from deepvm.io.failpoints import point
from deepvm.io.process_tree import become_subreaper, end_descendants
from deepvm.jobs.agent.notices import ENDPOINT
from deepvm.jobs.clouds.fake_metadata import FakeMetadata
from deepvm.jobs.clouds.reaper import KEPT
from deepvm.jobs.steady_clock import clock_of

_LOOK_S = 0.02


def main() -> None:
    """Run one machine until its agent has ended it, or its cloud has taken it back."""
    place = Path(sys.argv[1])
    if KEPT in sys.argv[2:]:
        become_subreaper()
        signal.signal(signal.SIGTERM, lambda *_: _end(place, "lost"))  # the keeper is gone
    settings = json.loads((place / "settings.json").read_bytes())
    zone = settings["zone"]
    facts = {"instance-type": settings["type"], "placement/availability-zone": zone}
    metadata = FakeMetadata(facts, settings["metadata_host"], settings["metadata_port"])
    point("machine.before-agent")
    agent = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "deepvm.jobs.agent.main",
            str(place / "settings.json"),
            metadata.url,
        ],
        env={**os.environ, **({ENDPOINT: metadata.url} if settings["metadata_named"] else {})},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    taken_s = math.inf
    while agent.poll() is None:
        time.sleep(_LOOK_S)
        _reap(agent.pid)
        if (place / "order.json").exists():
            order = json.loads((place / "order.json").read_bytes())
            if "end" in order:
                _end(place, order["end"])
            if "recommended_s" in order:
                metadata.recommend(order["recommended_s"])
            if taken_s == math.inf and "taken_s" in order:
                point("machine.before-notice")
                taken_s = time.monotonic() + float(order["taken_s"]) - time.time()
                metadata.notice(float(order["taken_s"]))
        if time.monotonic() >= taken_s:
            _end(place, "preempted")
    # An instance that shuts itself down is gone.
    _end(place, "shut down")


def _reap(spared: int) -> None:
    """As the first process of its kind it is the parent of all that have lost theirs."""
    with suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == spared:
                return
            os.waitpid(found.si_pid, os.WNOHANG)


def _end(place: Path, reason: str) -> None:
    point("machine.before-end")
    ended_s = clock_of(place.parents[1]).now_s()
    write_json(place / "ended.json", {"ended_s": ended_s, "why": reason})
    if os.getpid() == 1:
        os._exit(0)  # and all processes with numbers of its own kind
    end_descendants()
    os._exit(0)


if __name__ == "__main__":
    main()
