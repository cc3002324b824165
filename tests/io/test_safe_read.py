"""Files that are no files or cannot be read: an answer, never a hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deepvm.errors import CatalogFormatError, Problem
from deepvm.io.safe_read import MAX_BYTES, os_reason, read_text


def refusal(path: Path) -> Problem:
    with pytest.raises(CatalogFormatError) as caught:
        read_text(path)
    assert caught.value.exit_code == 4
    assert str(path) in str(caught.value)
    (problem,) = caught.value.problems
    return problem


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.txt"


def test_text_comes_back_without_its_mark(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbfs\xc3\xbc\xc3\x9f\n")
    assert read_text(path) == "s\u00fc\u00df\n"
    assert read_text(Path("/proc/self/status")).startswith("Name:"), (
        "its size is 0 until it is read"
    )


def test_what_is_wanted_and_how_much_is_the_callers_choice(path: Path) -> None:
    path.write_text("x" * 2**20 + "x")
    with pytest.raises(CatalogFormatError, match="has 1 MiB; allowed: at most 1 MiB"):
        read_text(path, most=2**20)
    path.write_text("")
    with pytest.raises(CatalogFormatError, match="is empty; wanted: a poem"):
        read_text(path, "wanted: a poem")


def test_why_the_system_refused() -> None:
    assert os_reason(OSError(2, "No such file", "x")) == "No such file"
    assert (os_reason(ValueError("embedded null byte")), os_reason(OSError())) == (
        "embedded null byte",
        "OSError",
    )


def test_empty_and_blank_files(path: Path) -> None:
    for content in ("", "  \n\t"):
        path.write_text(content)
        assert refusal(path).found == "is empty"


def test_a_folder(path: Path) -> None:
    path.mkdir()
    assert "folder" in refusal(path).found


def test_a_named_pipe_does_not_hang(path: Path) -> None:
    os.mkfifo(path)
    assert "pipe" in refusal(path).found


def test_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")
    assert "device" in refusal(path).found


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0)
    assert "Permission denied" in refusal(path).found


def test_a_path_through_a_file(path: Path) -> None:
    path.write_text("{}")
    assert "Not a directory" in refusal(path / "x").found


def test_a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)
    assert "cannot be opened" in refusal(path).found


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    for name in ("a\0b", "x" * 5000, "\ud800"):
        with pytest.raises((CatalogFormatError, FileNotFoundError)):
            read_text(tmp_path / name)


@pytest.mark.parametrize(
    ("data", "place", "found"),
    [
        (b'{"name": "\xff"}', "byte 10", "0xff"),
        (b"\xef\xbb\xbf{\xff}", "byte 4", "0xff"),
        ("text".encode("utf-16"), "byte 0", "UTF-16"),
        (b"\x1f\x8b\x08\x00", "byte 1", "gzip"),
    ],
)
def test_a_wrong_encoding_names_the_byte(data: bytes, place: str, found: str, path: Path) -> None:
    path.write_bytes(data)
    problem = refusal(path)
    assert problem.place == place and found in problem.found and "UTF-8" in problem.expected


def test_a_huge_file_is_refused_unread(path: Path) -> None:
    with open(path, "wb") as stream:
        stream.truncate(2**40)  # a hole of one TiB: reading it would not end
    assert "1048576 MiB" in refusal(path).found


def test_a_growing_file_is_refused_too(path: Path) -> None:
    with open(path, "wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    assert "allowed: at most 64 MiB" in refusal(path).expected


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_text(path)
