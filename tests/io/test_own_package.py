"""Where other machines get the deepvm that runs here, and what an archive of it holds."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from support.places import ROOT

from deepvm.io import own_package as module
from deepvm.io.own_package import OwnPackage, own_package, package_archive

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GIT = {"vcs": "git", "commit_id": COMMIT, "requested_revision": "main"}
SUM = {"hashes": {"sha256": "ab12"}}


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, told: Any = None) -> OwnPackage:
    """As it would be if the installer had written this down."""
    info = folder / "deepvm-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deepvm\nVersion: 0.3\n")
    if told is not None:
        (info / "direct_url.json").write_text(json.dumps(told))
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(info))
    return own_package()


@pytest.mark.parametrize(
    ("told", "requirement"),
    [
        (None, "deepvm[train]==0.3"),
        (
            {"url": "https://h.org/a.git", "vcs_info": GIT},
            f"deepvm[train]@git+https://h.org/a.git@{COMMIT}",
        ),
        (
            {"url": "https://h.org/a.git", "vcs_info": GIT, "subdirectory": "x"},
            f"deepvm[train]@git+https://h.org/a.git@{COMMIT}#subdirectory=x",
        ),
        ({"url": "https://h.org/a.whl", "archive_info": {}}, "deepvm[train]@https://h.org/a.whl"),
        (
            {"url": "https://h.org/a.tar.gz", "archive_info": SUM, "subdirectory": "x"},
            "deepvm[train]@https://h.org/a.tar.gz#sha256=ab12&subdirectory=x",
        ),
        ({"url": "file:///home/me/deepvm", "dir_info": {}}, ""),
        ({"url": "file:///home/me/deepvm", "dir_info": {"editable": True}}, ""),
        ({"url": "file:///home/me/deepvm-0.3.whl", "archive_info": SUM}, ""),
        ({"url": "file:///home/me/deepvm", "vcs_info": GIT}, ""),
        ({"url": "ssh://git@h.org/a.git", "vcs_info": GIT}, ""),  # whose key is here
        ({"url": "https://${TOKEN}@h.org/a.git", "vcs_info": GIT}, ""),
        ({"url": 'https://h.org/a.whl"; reboot; "', "archive_info": {}}, ""),
    ],
)
def test_where_others_get_it(
    told: Any, requirement: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = installed(monkeypatch, tmp_path, told)
    assert found.requirement("[train]") == requirement
    assert found.wheel_name == ("" if requirement else "deepvm-0.3-py3-none-any.whl")
    assert bool(found.wheel) is not bool(requirement)
    if told and told["url"].startswith("file:"):
        assert found.place == told["url"].removeprefix("file://")


@pytest.mark.parametrize(
    "pin", ["==0.3", f"@git+https://h.org/a.git@{COMMIT}", "@https://h.org/a.whl#sha256=ab12"]
)
def test_pip_reads_it(pin: str) -> None:
    requirements = pytest.importorskip("packaging.requirements")
    found = requirements.Requirement(OwnPackage(pin).requirement("[train]"))
    assert (found.name, found.extras) == ("deepvm", {"train"}) and (
        found.url or str(found.specifier)
    ) in pin


def test_without_an_installation_nobody_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", none)
    assert own_package() == OwnPackage("", str(ROOT))


def test_an_archive_holds_deepvm_and_nothing_that_lies_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a folder in which somebody works."""
    package, data = tmp_path / "deepvm", tmp_path / "data"
    for name in (
        "io/own_package.py",
        "py.typed",
        "page.css",
        "io/__pycache__/a.pyc",
        "_data/old.json",
    ):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("")
    for name in (".env", "key.pem", "notes.txt~", "core", ".venv/x.py", "io/.own_package.py.swp"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("secret")
    data.mkdir()
    (data / "paper.json").write_text("{}")
    (data / ".token.json").write_text("secret")
    monkeypatch.setattr(module, "__file__", str(package / "io" / "own_package.py"))
    monkeypatch.setattr(module, "data_folder", lambda: data)
    ours = {
        "deepvm/io/own_package.py",
        "deepvm/py.typed",
        "deepvm/page.css",
        "deepvm/_data/paper.json",
    }
    wheel = installed(monkeypatch, tmp_path, {"url": "file:///x", "dir_info": {}}).wheel
    info = {
        f"deepvm-0.3.dist-info/{name}"
        for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")
    }
    assert set(zipfile.ZipFile(io.BytesIO(wheel)).namelist()) == ours | info
    package_archive.cache_clear()
    try:
        with tarfile.open(
            fileobj=io.BytesIO(package_archive(data=True, libraries=False))
        ) as archive:
            assert set(archive.getnames()) == ours
    finally:
        package_archive.cache_clear()


def test_the_archive_has_all_that_git_has() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "deepvm", "data"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    here = [name for name in listed.stdout.split() if (ROOT / name).exists()]
    wanted = {re.sub("^data/", "deepvm/_data/", name) for name in here}
    with tarfile.open(fileobj=io.BytesIO(package_archive(data=True, libraries=False))) as archive:
        assert wanted <= set(archive.getnames())
