"""The first deepvm process on an EC2 machine: fetches its settings and runs the agent."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from deepvm.jobs.clouds.aws.s3_read import metadata, read, read_patiently
from deepvm.jobs.wire import FAR_BEAT_S

_LOOK_S = 1.0
_REFRESH_S = 5.0
_NO_CONTROLLER_S = 1800.0
_WATCHDOG_MIN = 30
PUT_OFF_S = 300.0
MACHINE_TAG = "deepvm:machine"


def main() -> None:
    """Run the agent until it ends, or until the controller was not found for half an hour."""
    region, bucket, prefix = sys.argv[1:]
    here = Path.cwd()
    machine = metadata(f"tags/instance/{MACHINE_TAG}")
    settings = json.loads(read_patiently(region, bucket, f"{prefix}/machines/{machine}.json"))
    controller = here / "controller"
    file = here / "settings.json"
    controller.write_text(settings["controller"])
    surroundings = {
        "address": metadata("local-ipv4"),
        "interface": "",
        "controller_file": str(controller),
    }
    file.touch(mode=0o600)
    file.write_text(json.dumps({"beat_s": FAR_BEAT_S, **settings, **surroundings}))
    # For setups and scripts, ``python`` is this one
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    agent = subprocess.Popen(
        [sys.executable, "-m", "deepvm.jobs.agent.main", str(file), "aws"],
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
    )
    began_s = time.monotonic()
    refreshed_s = time.monotonic()
    put_off_s = 0.0
    while agent.poll() is None:
        time.sleep(_LOOK_S)
        now_s = time.monotonic()
        # Until an agent has a token, the first thing it gets, it waits for ever
        if now_s - began_s > _NO_CONTROLLER_S and not (here / "agent" / "token").exists():
            agent.kill()
        if now_s - refreshed_s > _REFRESH_S:
            refreshed_s = now_s
            # A controller that was started again may be elsewhere.
            with suppress(OSError, ValueError, LookupError):
                controller.write_bytes(read(region, bucket, f"{prefix}/controller"))
        if not put_off_s or now_s - put_off_s > PUT_OFF_S:
            put_off_s = now_s
            put_off_shutdown()


def put_off_shutdown() -> None:
    """Have the machine end later, unless this is called again before."""
    with suppress(OSError):  # no memory now
        subprocess.run(
            ["shutdown", "--no-wall", "-h", f"+{_WATCHDOG_MIN}"],
            stdin=subprocess.DEVNULL,
            check=False,
        )


if __name__ == "__main__":
    main()
