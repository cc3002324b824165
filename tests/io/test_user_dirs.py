"""The user's folders are those of platformdirs, and the data is found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import platformdirs
import pytest
from support.places import ROOT

from deepvm.io import user_dirs
from deepvm.io.user_dirs import data_folder, user_folder

Kind = Literal["cache", "config", "data"]
KINDS: tuple[Kind, ...] = ("cache", "config", "data")


@pytest.mark.skipif(sys.platform != "linux", reason="the rule is copied for Linux only")
@pytest.mark.parametrize("value", ["/srv/own", " ", "", None])
@pytest.mark.parametrize("kind", KINDS)
def test_folders_are_those_of_platformdirs(
    kind: Kind, value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"XDG_{kind.upper()}_HOME"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(variable, raising=False)
    if value is not None:
        monkeypatch.setenv(variable, value)
    environ = {} if value is None else {variable: value}
    assert user_folder(kind, environ) == getattr(platformdirs, f"user_{kind}_path")("deepvm")


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_variable_of_the_kind_counts(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    environ = {f"XDG_{k.upper()}_HOME": f"/srv/{k}" for k in KINDS}
    assert user_folder(kind, environ) == Path(f"/srv/{kind}/deepvm")


@pytest.mark.parametrize("kind", KINDS)
def test_no_folder_without_a_home(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", "relative")
    assert user_folder(kind, {}) is None
    assert user_folder(kind, {f"XDG_{kind.upper()}_HOME": "relative"}) is None


@pytest.mark.parametrize("kind", KINDS)
def test_elsewhere_platformdirs_decides(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platformdirs, f"user_{kind}_path", lambda name: Path("/Users/me") / name)
    assert user_folder(kind, {f"XDG_{kind.upper()}_HOME": "/srv/own"}) == Path("/Users/me/deepvm")


def test_the_data_of_the_repository() -> None:
    assert data_folder() == ROOT / "data" and (data_folder() / "aws").is_dir()


def test_the_data_of_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "deepvm"
    monkeypatch.setattr(user_dirs, "__file__", str(package / "io" / "user_dirs.py"))
    assert data_folder() == tmp_path / "site-packages" / "data"
    (package / "_data").mkdir(parents=True)
    assert data_folder() == package / "_data"
