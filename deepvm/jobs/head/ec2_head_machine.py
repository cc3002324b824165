"""The first deepvm process on a remote controller: fetches the job and runs its controller.

When it ends, the script that has started it shuts the machine down, which terminates it; where that
script is gone, too, the shutdown that is put off here again and again comes by itself.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from pathlib import Path

from deepvm.jobs.clouds.aws.ec2_machine import PUT_OFF_S, put_off_shutdown
from deepvm.jobs.clouds.aws.s3_read import metadata, read_patiently


def _put_off(over: threading.Event) -> None:
    while not over.is_set():
        put_off_shutdown()
        over.wait(PUT_OFF_S)


def main() -> None:
    """Run the controller of a job until that is over, or until nothing can be done about it."""
    region, bucket, prefix = sys.argv[1:]
    logging.basicConfig(format="deepvm head: %(message)s", level=logging.WARNING)
    number = int(metadata("tags/instance/deepvm:machine").rpartition("-")[2])
    known = json.loads(read_patiently(region, bucket, f"{prefix}/settings.json"))
    data = Path.cwd() / "data"
    os.environ.update(known["environ"], DEEPVM_DATA_DIR=str(data))
    from deepvm.jobs.clouds.aws.ec2_cloud import Ec2Cloud
    from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings
    from deepvm.jobs.head.machine import HeadMachine

    (data / "jobs").mkdir(parents=True, exist_ok=True)
    (data / "jobs" / ".aws-owner").write_text(known["owner"])
    cloud = Ec2Cloud(data / "jobs", Ec2Settings.of())
    over = threading.Event()
    threading.Thread(target=_put_off, args=(over,), daemon=True).start()
    try:
        HeadMachine(known["job"], number, data / "jobs", cloud).run()
    finally:
        over.set()


if __name__ == "__main__":
    main()
