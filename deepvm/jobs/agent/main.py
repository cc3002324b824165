"""The agent process of a machine of ``deepvm run``: reads its settings file and the metadata."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from deepvm.jobs.agent.agent import Agent
from deepvm.jobs.agent.anchor import AnchorAgent
from deepvm.jobs.agent.notices import notice_source
from deepvm.jobs.agent.preparation import AgentEnvironment
from deepvm.jobs.wire import NEAR_BEAT_S


def main() -> None:
    """Run it to the machine's end."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    file = Path(sys.argv[1])
    metadata = sys.argv[2]
    settings = json.loads(file.read_bytes())

    def controller() -> str:
        known = settings.get("controller_file")
        if known:
            try:
                return Path(known).read_text().strip()
            except OSError:
                return str(settings["controller"])
        return str(settings["controller"])

    around = AgentEnvironment(
        machine=settings["machine"],
        secret=bytes.fromhex(settings["secret"]),
        folder=file.parent / "agent",
        controller=controller,
        address=settings.get("address", "127.0.0.1"),
        interface=settings.get("interface", "lo"),
        beat_s=float(settings.get("beat_s", NEAR_BEAT_S)),
        orphan_after_s=float(settings.get("orphan_after_s", 1800.0)),
    )
    if settings.get("role") == "anchor":
        AnchorAgent(around).run()
    else:
        Agent(around, notice_source(metadata)).run()


if __name__ == "__main__":
    main()
