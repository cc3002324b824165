"""A repository as that of skypilot-catalog, made by the tests."""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
HEADER = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,"
    "Region,AvailabilityZone,Arch"
)


_GPUS = {"g4dn": ("T4", 16384), "p3": ("V100", 16384)}


def row(name: str, spot: str, zone: str = "use1-az1", region: str = "us-east-1") -> str:
    model, mib = _GPUS.get(name.partition(".")[0], ("", 0))
    gpu = (
        f"{{'Name': '{model}', 'Manufacturer': 'NVIDIA', 'Count': 1, 'MemoryInfo': {{'SizeInMiB':"
        f" {mib}}}}}"
    )
    info = f"\"{{'Gpus': [{gpu}], 'TotalGpuMemoryInMiB': {mib}}}\"" if model else ""
    return f"{name},{model},{1 if model else ''},4,16,{info},0.526,{spot},{region},{zone},x86_64"


class Clone:
    """A repository with commits at times before ``now``."""

    def __init__(self, folder: Path, now: datetime = NOW) -> None:
        self.now = now
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=master")

    def git(self, *words: str, at: datetime = NOW) -> str:
        own = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "HOME": str(self.folder),
        }
        who = {
            f"GIT_{w}_{k}": v
            for w in ("AUTHOR", "COMMITTER")
            for k, v in (("NAME", "a"), ("EMAIL", "a@b"))
        }
        dates = {"GIT_AUTHOR_DATE": at.isoformat(), "GIT_COMMITTER_DATE": at.isoformat()}
        env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | own | who | dates
        done = subprocess.run(
            ["git", "-C", str(self.folder), *words], env=env, check=True, capture_output=True
        )
        return done.stdout.decode()

    def store(
        self, days_ago: float, *rows: str, path: str = "catalogs/v8/aws/vms.csv", text: str = ""
    ) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text or "\n".join([HEADER, *rows]) + "\n")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "catalog", at=self.now - timedelta(days=days_ago))
