"""The switch of a job whose machines are network namespaces."""

import os
import subprocess
from pathlib import Path

from support.profiling.namespaces import need_namespaces

from deepvm.jobs.clouds import netns


def test_a_switch_that_was_left_half_made_gets_its_address(tmp_path: Path) -> None:
    """A kill campaign killed a controller before it gave the address: the next one could not
    listen.
    """
    need_namespaces()
    job = f"half-{os.getpid()}"  # networks are everybody's
    cloud = netns.NetnsCloud(tmp_path)
    bridge = netns._bridge(job)
    subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=True)
    try:
        address = cloud.host(job)
        shown = subprocess.run(
            ["ip", "addr", "show", bridge], capture_output=True, text=True, check=True
        ).stdout
        assert f"inet {address}/24" in shown
        assert cloud.host(job) == address
    finally:
        cloud.finish(job)
    assert not Path(f"/sys/class/net/{bridge}").exists()
