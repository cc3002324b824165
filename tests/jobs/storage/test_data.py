"""Data of a job: all of it or nothing, resumed, and errors that say what to do."""

from __future__ import annotations

import os
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.object_store import BUCKET, Store, running

from deepvm.errors import DataError
from deepvm.jobs.storage import data
from deepvm.jobs.storage.data import have_data

pytestmark = pytest.mark.xdist_group("object store")  # one process starts the server, once


@pytest.fixture
def bucket() -> Iterator[Store]:
    with running() as found:
        yield found


@pytest.fixture
def filled(bucket: Store) -> Store:
    for name, size in (
        ("train/a", 10),
        ("train/deep/b", 5_000_000),
        ("train/", 0),
        ("train2/c", 3),
        ("one.tar", 7),
    ):
        bucket.client().put_object(Bucket=BUCKET, Key=name, Body=content(name, size))
    return bucket


def content(name: str, size: int) -> bytes:
    return (name.encode() * size)[:size]


def have(store: Store, folder: Path, **wanted: Any) -> list[str]:
    said = list[str]()
    have_data(wanted, folder, said.append, store.url)
    return said


def files(folder: Path) -> dict[str, int]:
    return {
        p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()
    }


def test_a_prefix_and_an_object(filled: Store, tmp_path: Path) -> None:
    said = have(filled, tmp_path, train=f"s3://{BUCKET}/train", tar=f"s3://{BUCKET}/one.tar")
    assert files(tmp_path) == {"train/a": 10, "train/deep/b": 5_000_000, "tar": 7}
    assert (tmp_path / "train/deep/b").read_bytes() == content("train/deep/b", 5_000_000)
    assert said[0] == "data train: 0 B of 5 MB, 0 of 2 files of s3://bucket/train"
    assert said[1] == "data train: 5 MB of 5 MB, 2 of 2 files of s3://bucket/train"
    filled.seen.clear()
    assert have(filled, tmp_path, train=f"s3://{BUCKET}/train/") == [] and not filled.seen, (
        "it is here"
    )


def test_it_goes_on_where_it_was_cut_off(filled: Store, tmp_path: Path) -> None:
    filled.trouble = lambda method, path: "403 Access Denied" if "deep/b" in path else None
    with pytest.raises(
        DataError, match="train: s3://bucket: cannot read train/deep/b: AccessDenied.*s3:GetObject"
    ):
        have(filled, tmp_path, train=f"s3://{BUCKET}/train")
    assert not (tmp_path / "train").exists(), "nothing is trained on half of it"
    filled.trouble = lambda method, path: None
    filled.seen.clear()
    have(filled, tmp_path, train=f"s3://{BUCKET}/train")
    assert files(tmp_path / "train") == {"a": 10, "deep/b": 5_000_000}
    assert not [path for method, path in filled.seen if path.startswith("/bucket/train/a")], (
        "it was whole"
    )
    assert sorted(os.listdir(tmp_path)) == ["train"]


def test_replies_that_break_off_and_servers_that_fail(filled: Store, tmp_path: Path) -> None:
    left = ["cut", "503 Slow Down", "500 Internal Error"]
    filled.trouble = lambda method, path: left.pop() if left and "deep/b" in path else None
    have(filled, tmp_path, train=f"s3://{BUCKET}/train")
    assert not left and (tmp_path / "train/deep/b").read_bytes() == content(
        "train/deep/b", 5_000_000
    )


def test_bytes_that_change_on_their_way(
    filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = data.Bucket.whole
    monkeypatch.setattr(
        data.Bucket, "whole", lambda *a, **options: whole(*a, **options).replace(b"t", b"x", 1)
    )
    with pytest.raises(DataError, match=r"s3://bucket/train: train/\S+ came with other bytes"):
        have(filled, tmp_path, train=f"s3://{BUCKET}/train")
    assert not (tmp_path / "train").exists()


def test_an_object_that_changes_while_it_is_fetched(filled: Store, tmp_path: Path) -> None:
    def change(method: str, path: str) -> None:
        if method == "GET" and "/deep/b" in path and not changed.is_set():
            changed.set()
            filled.client().put_object(Bucket=BUCKET, Key="train/deep/b", Body=bytes(5_000_000))

    changed = threading.Event()
    filled.before = change
    with pytest.raises(DataError, match="PreconditionFailed"):
        have(filled, tmp_path, train=f"s3://{BUCKET}/train")
    assert not (tmp_path / "train").exists()


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("s3://nowhere/train", "NoSuchBucket.*make the bucket first, or correct its name"),
        (f"s3://{BUCKET}/trai", "there is nothing at s3://bucket/trai; correct the URL in data:"),
        ("/no/such/place", "there is no /no/such/place on this machine; correct the path"),
        ("file:///no/such/place", "there is no /no/such/place on this machine"),
        (
            {"mount": "/no/such/place"},
            "there is no /no/such/place on this machine; mount it in setup:",
        ),
    ],
)
def test_what_is_not_there(filled: Store, tmp_path: Path, where: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"train: .*{said}"):
        have(filled, tmp_path, train=where)
    assert not (tmp_path / "train").exists()


def test_a_disk_without_room(
    filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(data.shutil, "disk_usage", lambda path: usage(0, 0, 70_000_000))
        with pytest.raises(
            DataError, match=r"5 MB of s3://bucket/train do not fit on the disk, .* larger disks"
        ):
            have(filled, tmp_path, train=f"s3://{BUCKET}/train")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(data.os, "fsync", full)
        with pytest.raises(
            DataError, match="No space left on device; give the machines larger disks"
        ):
            have(filled, tmp_path, train=f"s3://{BUCKET}/train")
    assert not (tmp_path / "train").exists()


def test_folders_files_and_mounts(bucket: Store, tmp_path: Path) -> None:
    place, here = tmp_path / "a place", tmp_path / "here"
    (place / "deep").mkdir(parents=True)
    (place / "deep" / "x").write_text("x")
    wanted = {
        "copy": str(place),
        "url": place.as_uri(),
        "one": str(place / "deep" / "x"),
        "there": {"mount": str(place)},
    }
    have_data(wanted, here, lambda line: None)
    assert files(here) == {"copy/deep/x": 1, "url/deep/x": 1, "one": 1}  # links are not followed
    assert (here / "there").is_symlink() and (here / "there" / "deep" / "x").read_text() == "x"
    have_data(wanted, here, lambda line: None)
    other = tmp_path / "other"
    other.mkdir()
    have_data({"there": {"mount": str(other)}}, here, lambda line: None)
    assert os.readlink(here / "there") == str(other)


def test_objects_whose_names_lead_out_of_the_folder(bucket: Store, tmp_path: Path) -> None:
    bucket.client().put_object(Bucket=BUCKET, Key="train/../../etc/passwd", Body=b"x")
    with pytest.raises(DataError, match="would lie outside"):
        have(bucket, tmp_path, train=f"s3://{BUCKET}/train")
