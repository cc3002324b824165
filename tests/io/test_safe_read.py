"""Files that are no files or cannot be read: an answer, never a hang."""

import os

import pytest

from deepvm.catalog.store import load_catalog, load_quotas, save_catalog
from deepvm.errors import CatalogFormatError, CatalogNotFoundError, DataError, RequestError
from deepvm.io.safe_read import MAX_BYTES


def refusal(path):
    with pytest.raises(CatalogFormatError) as caught:
        load_catalog(path)
    assert caught.value.exit_code == 4
    assert str(path) in str(caught.value)
    (problem,) = caught.value.problems
    return problem


@pytest.fixture(params=[".json", ".csv"])
def path(request, tmp_path):
    return tmp_path / f"mine{request.param}"


def test_empty_and_blank_files(path):
    for content in ("", "  \n\t"):
        path.write_text(content)
        assert refusal(path).found == "is empty"


def test_a_folder(path):
    path.mkdir()
    assert "folder" in refusal(path).found


def test_a_named_pipe_does_not_hang(path):
    os.mkfifo(path)
    assert "pipe" in refusal(path).found


def test_a_device(path):
    path.symlink_to("/dev/zero")
    assert "device" in refusal(path).found


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(path):
    path.write_text("{}")
    path.chmod(0)
    assert "Permission denied" in refusal(path).found


def test_a_path_through_a_file(path):
    path.write_text("{}")
    assert "Not a directory" in refusal(path / "x.json").found


def test_a_link_to_itself(path):
    path.symlink_to(path)
    assert "cannot be opened" in refusal(path).found


def test_a_name_that_no_file_can_have():
    for name in ("a\0b.json", "x" * 5000 + ".json", "\ud800.csv"):
        with pytest.raises(DataError):
            load_catalog(name)


@pytest.mark.parametrize(
    ("data", "place", "found"),
    [
        (b'{"name": "\xff"}', "byte 10", "0xff"),
        (b"\xef\xbb\xbf{\xff}", "byte 4", "0xff"),
        ("text".encode("utf-16"), "byte 0", "UTF-16"),
        (b"\x1f\x8b\x08\x00", "byte 1", "gzip"),
    ],
)
def test_a_wrong_encoding_names_the_byte(data, place, found, path):
    path.write_bytes(data)
    problem = refusal(path)
    assert problem.place == place and found in problem.found and "UTF-8" in problem.expected


def test_a_huge_file_is_refused_unread(path):
    with open(path, "wb") as stream:
        stream.truncate(2**40)  # a hole of one TiB: reading it would not end
    assert "1048576 MiB" in refusal(path).found


def test_a_growing_file_is_refused_too(path):
    with open(path, "wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    assert "allowed: at most 64 MiB" in refusal(path).expected


def test_a_missing_file(path):
    with pytest.raises(CatalogNotFoundError, match="no such file"):
        load_catalog(path)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("papre", "did you mean paper"),
        ("no-such", "no embedded catalog has this name"),
        ("", "no embedded catalog has this name"),
        ("./paper", "neither in .json nor in .csv"),
        ("prices.txt", "no embedded catalog has this name"),
        (".", "a folder"),
    ],
)
def test_names_that_lead_nowhere(name, why):
    with pytest.raises(CatalogNotFoundError, match=why) as caught:
        load_catalog(name)
    assert "paper, simulated" in str(caught.value) and caught.value.exit_code == 4


def test_paths_of_any_kind_and_case(tmp_path):
    path = tmp_path / "MINE.JSON"
    save_catalog(load_catalog("paper"), path)
    assert load_catalog(str(path)).instances == load_catalog(path).instances == load_catalog("paper").instances


def test_quotas_from_a_pipe_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "q.json")
    with pytest.raises(CatalogFormatError, match="pipe"):
        load_quotas(tmp_path / "q.json")


def test_saving_needs_an_ending(tmp_path):
    with pytest.raises(RequestError, match="ends in .json or .csv"):
        save_catalog(load_catalog("paper"), tmp_path / "mine.txt")
