"""Logs of a head reach its user whole, each line once, whatever ends in between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.jobs.memory_bucket import MemoryBucket

from deepvm.jobs.cloud import UnknownError
from deepvm.jobs.head import mirror
from deepvm.jobs.head.mirror import LogPieces, fetch_logs
from deepvm.jobs.history.log_files import FOLDER


def test_pieces_add_up_whatever_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_MOST", 100)
    rng, bucket = random.Random(5), MemoryBucket()
    head, laptop = tmp_path / "head", tmp_path / "laptop"
    (head / FOLDER).mkdir(parents=True)
    laptop.mkdir()
    pieces, last, texts = LogPieces(head, bucket, 1), "", {"m1": "", "m2": ""}
    for number in range(200):
        machine = rng.choice(list(texts))
        added = f"line {number} é{'x' * rng.randrange(20)}" + ("\n" if rng.random() < 0.8 else "")
        texts[machine] += added
        (head / FOLDER / f"{machine}.log").write_text(texts[machine])
        if rng.random() < 0.3:
            pieces.send()
        if rng.random() < 0.1:  # the controller was killed
            pieces = LogPieces(head, bucket, 1)
        if rng.random() < 0.2:
            last = [last, *fetch_logs(laptop, bucket, last)][-1]
    pieces.send(last=True)
    list(fetch_logs(laptop, bucket, last))
    assert {m: (laptop / FOLDER / f"{m}.log").read_text() for m in texts} == texts


@pytest.mark.parametrize("arrived", [True, False])
def test_a_piece_whose_reply_is_lost_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    bucket, head, laptop = MemoryBucket(), tmp_path / "head", tmp_path / "laptop"
    (head / FOLDER).mkdir(parents=True)
    laptop.mkdir()
    monkeypatch.setattr(mirror, "_MOST_S", 0.0)
    pieces, put, text = LogPieces(head, bucket, 1), bucket.put, ""

    def lost(key: str, data: bytes) -> None:
        if arrived:
            put(key, data)
        raise UnknownError("no answer")

    def add(line: str) -> None:
        nonlocal text
        text += f"{line}\n"
        (head / FOLDER / "m1.log").write_text(text)

    add("one")
    pieces.send()
    add("two")
    with monkeypatch.context() as patch:
        patch.setattr(bucket, "put", lost)
        with pytest.raises(UnknownError):
            pieces.send()
    (*_, last) = fetch_logs(laptop, bucket, "")  # somebody reads in between
    add("three")
    pieces.send()
    list(fetch_logs(laptop, bucket, last))
    assert (laptop / FOLDER / "m1.log").read_text() == text


@pytest.mark.parametrize("size", [20, 100])
def test_trainers_that_print_all_the_time_keep_no_command_from_being_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Whoever sends their lines looks for commands, too, such as the one to stop."""
    monkeypatch.setattr(mirror, "_MOST", 100)
    bucket, head = MemoryBucket(), tmp_path / "head"
    (head / FOLDER).mkdir(parents=True)
    put, file = bucket.put, head / FOLDER / "m1.log"

    def print_and_put(key: str, data: bytes) -> None:
        assert len(bucket.objects) < 50, "it does not end"
        with file.open("a") as stream:
            stream.write("x" * (size - 1) + "\n")
        put(key, data)

    file.write_text("begin\n")
    monkeypatch.setattr(bucket, "put", print_and_put)
    LogPieces(head, bucket, 1).send()


@pytest.mark.system
def test_what_was_sent_takes_no_place_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head has a few gigabytes, and a full disk ends its controller.

    Trainers may print for weeks.
    """
    monkeypatch.setattr(mirror, "_MOST_S", 0.0)
    bucket, head, laptop, line = (
        MemoryBucket(),
        tmp_path / "head",
        tmp_path / "laptop",
        "x" * 999 + "\n",
    )
    (head / FOLDER).mkdir(parents=True)
    laptop.mkdir()
    file = head / FOLDER / "m1.log"
    pieces = LogPieces(head, bucket, 1)
    for _ in range(3):
        with file.open("a") as stream:
            stream.write(line * 3000)
        pieces.send()
    assert file.stat().st_size == 9_000_000 and file.stat().st_blocks * 512 < 2_000_000
    with file.open("a") as stream:
        stream.write("the end\n")
    LogPieces(head, bucket, 1).send()
    list(fetch_logs(laptop, bucket, ""))
    assert (laptop / FOLDER / "m1.log").read_text() == line * 9000 + "the end\n"


def test_those_of_the_next_head_come_behind(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    for number in (1, 2):
        folder = tmp_path / str(number)
        (folder / FOLDER).mkdir(parents=True)
        (folder / FOLDER / "m1.log").write_text(f"of head {number}\n")
        LogPieces(folder, bucket, number).send()
    (tmp_path / "laptop").mkdir()
    assert len(list(fetch_logs(tmp_path / "laptop", bucket, ""))) == 2
    assert (tmp_path / "laptop" / FOLDER / "m1.log").read_text() == "of head 1\nof head 2\n"


def test_a_piece_that_cannot_be_read(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    bucket.put("logs/000001-00000001", b"x")
    with pytest.raises(UnknownError, match="cannot be read"):
        list(fetch_logs(tmp_path, bucket, ""))
