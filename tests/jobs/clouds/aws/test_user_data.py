"""What machines run when they boot."""

from __future__ import annotations

import configparser
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import botocore
import pytest
from support.jobs.fake_machines import SHUTDOWN, SYSTEMCTL, placed

from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings, user_data


def has_all(folder: Path) -> bool:
    """Whether a head takes this Python's packages for those that a controller needs."""
    settings = Ec2Settings("us-east-1", "bucket", install="deepvm")
    script = user_data("resnet-7", settings, "deepvm/x/resnet-7/head", ["boto3"])
    found = re.search(r'if ! (\\?"\$python" -c \'.*?\'); then', script, re.S)
    assert found is not None
    words = ["bash", "-c", f"python={sys.executable}; {found[1]}"]
    return (
        subprocess.run(
            words, env={**os.environ, "AWS_DATA_PATH": str(folder)}, check=False
        ).returncode
        == 0
    )


@pytest.mark.slow  # loads all packages of a controller twice
def test_an_image_whose_boto3_cannot_write_a_mirror_gets_another(tmp_path: Path) -> None:
    """Before 1.35.69 it refuses ``IfMatch``, as any option that it does not know."""
    assert has_all(tmp_path)
    model = Path(botocore.__file__).parent / "data" / "s3" / "2006-03-01" / "service-2.json.gz"
    known = json.loads(gzip.decompress(model.read_bytes()))
    del known["shapes"]["PutObjectRequest"]["members"]["IfMatch"]
    (tmp_path / "s3" / "2006-03-01").mkdir(parents=True)
    (tmp_path / "s3" / "2006-03-01" / "service-2.json").write_text(json.dumps(known))
    assert not has_all(tmp_path)


@pytest.mark.parametrize("can", [True, False])
def test_a_machine_that_boots_again_ends(tmp_path: Path, can: bool) -> None:
    """EC2 runs user data at the first boot alone, and forgets what it has scheduled.

    One that cannot see to it ends.
    """
    stub = tmp_path / "bin"
    stub.mkdir()
    for name, text in (
        ("shutdown", SHUTDOWN),
        ("systemctl", SYSTEMCTL if can else "#!/bin/sh\nexit 1\n"),
    ):
        (stub / name).write_text(text)
        (stub / name).chmod(0o755)
    settings = Ec2Settings("us-east-1", "bucket", python="no-such-python")
    script = user_data("resnet-7", settings, "deepvm/x/resnet-7")
    environ = {"PATH": f"{stub}:{os.environ['PATH']}", "STUB": str(tmp_path), "HOME": str(tmp_path)}
    (tmp_path / "user-data").write_text(placed(script, tmp_path))
    subprocess.run(["bash", str(tmp_path / "user-data")], env=environ, check=False, timeout=30)
    assert (tmp_path / "shutdowns").read_text().splitlines() == ["-h +20", "-h now"]
    assert (tmp_path / "disk").exists() == can
    if can:
        assert (tmp_path / "systemctl").read_text() == "enable deepvm-end.service\n"
        unit = configparser.ConfigParser()
        unit.read(tmp_path / "unit")
        assert unit["Service"]["ExecStart"] == "/sbin/shutdown -h now"
        assert unit["Install"]["WantedBy"] == "multi-user.target"
        there = unit["Unit"]["ConditionPathExists"]
        assert there == f"!{tmp_path / 'this-boot'}" and (tmp_path / "this-boot").exists(), (
            "not in this boot"
        )
