"""Outputs of a job on AWS: by its bucket, from an instance that is taken back and the next one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.jobs.fake_ec2 import FakeEc2
from support.jobs.fake_machines import Machines
from support.jobs.runs import Home, until

pytestmark = pytest.mark.slow  # a whole job

PLAIN = """
import os, time
for step in range(400):
    time.sleep(0 if os.path.exists(os.environ["RESULT"] + "/hurry") else 0.05)
    with open("new.tmp", "wb") as file:
        file.write(b"\\0%d" % step)
    os.replace("new.tmp", "model.bin")
    open(os.environ["RESULT"] + "/step", "w").write(str(step))
"""


def test_outputs_come_from_the_bucket(
    home: Home, ec2: FakeEc2, machines: Machines, tmp_path: Path
) -> None:
    home.env["DEEPVM_CONTROLLER_HOST"] = "127.0.0.1"
    (home.code / "plain.py").write_text(PLAIN)
    job = home.job("one", "exec python plain.py;", cloud="aws", outputs=["*.bin"])
    process = home.start("run", str(job), "--no-resume-check", "-o", "json")
    until(lambda: (home.result / "step").exists() or process.poll() is not None, 90)
    assert process.poll() is None, process.communicate()
    (first,) = machines.all.values()
    machines.interrupt(first, 6.0)
    until(lambda: any("/outputs/m1/" in key for key in ec2.objects()), 60)
    home.hurry()
    _, said = process.communicate(timeout=180)
    assert process.returncode == 0, (said, (first.place / "console").read_text())
    done = home.run("jobs", "fetch", "one", "--to", str(tmp_path / "got"), "-o", "json")
    assert done.returncode == 0, done
    (model,) = json.loads(done.stdout)["files"]
    assert model["name"] == "model.bin"
    assert (tmp_path / "got" / "model.bin").read_bytes() == b"\000399"
    # It stays there after the end
    names = [key for key in ec2.objects() if "/outputs/" in key]
    assert {key.partition("/outputs/")[2].partition("/")[0].partition(".")[0] for key in names} >= {
        model["machine"]
    }
