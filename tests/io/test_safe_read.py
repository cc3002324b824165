"""Files that are no files or cannot be read: an answer, never a hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deepvm.errors import CatalogFormatError
from deepvm.io.safe_read import MAX_BYTES, os_reason, read_text


def refusal(path: Path) -> str:
    with pytest.raises(CatalogFormatError) as caught:
        read_text(path)
    assert caught.value.exit_code == 4
    assert str(path) in str(caught.value)
    (problem,) = caught.value.problems
    return str(problem)


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
    with pytest.raises(CatalogFormatError, match="has 1 MiB .expected at most 1 MiB"):
        read_text(path, limit=2**20)
    path.write_text("")
    with pytest.raises(CatalogFormatError, match="is empty .expected a poem"):
        read_text(path, "a poem")


def test_why_the_system_refused() -> None:
    assert os_reason(OSError(2, "No such file", "x")) == "No such file"
    assert (os_reason(ValueError("embedded null byte")), os_reason(OSError())) == (
        "embedded null byte",
        "OSError",
    )


def test_empty_and_blank_files(path: Path) -> None:
    for content in ("", "  \n\t"):
        path.write_text(content)
        assert refusal(path).startswith("is empty")


def test_a_folder(path: Path) -> None:
    path.mkdir()
    assert "folder" in refusal(path)


def test_a_named_pipe_does_not_hang(path: Path) -> None:
    os.mkfifo(path)
    assert "pipe" in refusal(path)


def test_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")
    assert "device" in refusal(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0)
    assert "Permission denied" in refusal(path)


def test_a_path_through_a_file(path: Path) -> None:
    path.write_text("{}")
    assert "Not a directory" in refusal(path / "x")


def test_a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)
    assert "cannot be read" in refusal(path)


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    for name in ("a\0b", "x" * 5000, "\ud800"):
        with pytest.raises((CatalogFormatError, FileNotFoundError)):
            read_text(tmp_path / name)


@pytest.mark.parametrize(
    ("data", "position", "found"),
    [
        (b'{"name": "\xff"}', 10, "0xff"),
        (b"\xef\xbb\xbf{\xff}", 1, "0xff"),
        ("text".encode("utf-16"), 0, "UTF-16"),
        (b"\x1f\x8b\x08\x00", 1, "gzip"),
    ],
)
def test_a_wrong_encoding_names_the_byte(
    data: bytes, position: int, found: str, path: Path
) -> None:
    path.write_bytes(data)
    problem = refusal(path)
    assert f"at position {position} is not UTF-8" in problem and found in problem


def test_a_huge_file_is_refused_unread(path: Path) -> None:
    with open(path, "wb") as stream:
        stream.truncate(2**40)  # a hole of one TiB: reading it would not end
    assert "1048576 MiB" in refusal(path)


def test_a_growing_file_is_refused_too(path: Path) -> None:
    with open(path, "wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    assert "expected at most 64 MiB" in refusal(path)


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_text(path)
