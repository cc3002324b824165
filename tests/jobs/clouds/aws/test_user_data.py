"""What machines run when they boot."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import botocore
import pytest

from deepvm.jobs.clouds.aws.user_data import head_data


def has_all(folder: Path) -> bool:
    """Whether a head takes this Python's packages for those that a controller needs."""
    script = head_data("resnet-7", "us-east-1", "bucket", "deepvm/x/resnet-7/head", ["boto3"], install="deepvm")
    found = re.search(r'if ! (\\?"\$python" -c \'.*?\'); then', script, re.S)
    assert found is not None
    words = ["bash", "-c", f"python={sys.executable}; {found[1]}"]
    return subprocess.run(words, env={**os.environ, "AWS_DATA_PATH": str(folder)}, check=False).returncode == 0


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
