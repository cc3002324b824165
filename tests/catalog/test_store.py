"""Names of catalogs, and files that are none: an answer that names the path, never a hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deepvm.catalog.store import load_catalog, load_quotas, save_catalog
from deepvm.errors import CatalogFormatError, CatalogNotFoundError, DataError, RequestError


@pytest.mark.parametrize("ending", [".json", ".csv"])
def test_files_that_are_none(tmp_path: Path, ending: str) -> None:
    """What else may be wrong with a file is in tests/io/test_safe_read.py."""
    path = tmp_path / f"mine{ending}"
    with pytest.raises(CatalogNotFoundError, match="no such file"):
        load_catalog(path)
    os.mkfifo(path)
    with pytest.raises(CatalogFormatError, match="is a pipe") as caught:
        load_catalog(path)
    assert caught.value.exit_code == 4 and str(path) in str(caught.value)
    path.unlink()
    path.mkdir()
    with pytest.raises(CatalogFormatError, match="is a folder"):
        load_catalog(path)


def test_a_name_that_no_file_can_have() -> None:
    for name in ("a\0b.json", "x" * 5000 + ".json", "\ud800.csv"):
        with pytest.raises(DataError):
            load_catalog(name)


def test_names_that_lead_nowhere() -> None:
    for name, why in [
        ("papre", "did you mean paper"),
        ("no-such", "no embedded catalog has this name"),
        ("", "no embedded catalog has this name"),
        ("./paper", "neither in .json nor in .csv"),
        ("prices.txt", "no embedded catalog has this name"),
        (".", "this is a folder"),
    ]:
        with pytest.raises(CatalogNotFoundError, match=why) as caught:
            load_catalog(name)
        assert "aws, gcp, azure" in str(caught.value) and "paper" in str(caught.value)
        assert caught.value.exit_code == 4


def test_paths_of_any_kind_and_case(tmp_path: Path) -> None:
    path = tmp_path / "MINE.JSON"
    save_catalog(load_catalog("paper"), path)
    assert (
        load_catalog(str(path)).instances
        == load_catalog(path).instances
        == load_catalog("paper").instances
    )


def test_quotas_from_a_pipe_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "q.json")
    with pytest.raises(CatalogFormatError, match="pipe"):
        load_quotas(tmp_path / "q.json")


def test_saving_needs_an_ending(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="ends in .json or .csv"):
        save_catalog(load_catalog("paper"), tmp_path / "mine.txt")
