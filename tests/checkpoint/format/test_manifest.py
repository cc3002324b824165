"""Commit records: each bit counts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoint.images import manifest_of, noise

from deepvm.checkpoint.format.manifest import CommitRecord
from deepvm.errors import RequestError

RECORD = replace(
    manifest_of(noise(100), chunk_bytes=30), layout="ab" * 32, created="2026-01-02T03:04:05+00:00"
)


@given(
    st.text("abz09._-", min_size=1, max_size=20),
    st.integers(0, 2**63 - 1),
    st.integers(1, 100),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20),
    st.integers(1, 2**30),
)
def test_a_record_survives_json(
    job: str, version: int, world: int, crcs: list[int], chunk_bytes: int
) -> None:
    size = (len(crcs) - 1) * chunk_bytes + 1
    manifest = CommitRecord(job, version, world, size, tuple(crcs), chunk_bytes)
    assert CommitRecord.from_json(manifest.to_json()) == manifest


def test_one_flipped_bit_is_seen_anywhere() -> None:
    data = RECORD.to_json()
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RequestError):
            CommitRecord.from_json(bytes(damaged))


def test_a_record_cut_anywhere_is_refused() -> None:
    data = RECORD.to_json()
    for length in range(len(data)):
        with pytest.raises(RequestError):
            CommitRecord.from_json(data[:length])


def test_figures_that_do_not_belong_together_are_refused() -> None:
    for change in [
        {"version": -1},
        {"version": 2**63},
        {"version": 1.0},
        {"version": True},
        {"version": "1"},
        {"world": 0},
        {"size": 0},
        {"size": 2**60},
        {"chunk_bytes": 0},
        {"chunk_bytes": 2**40, "crcs": (1,)},
        {"crcs": ()},
        {"crcs": (1,) * 5},
        {"crcs": ("a",) * 4},
        {"job": 3},
        {"created": None},
    ]:
        with pytest.raises(RequestError):
            replace(RECORD, **change)


def test_what_is_no_record_is_refused() -> None:
    for data in [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schema_version": "other/1"}',
    ]:
        with pytest.raises(RequestError):
            CommitRecord.from_json(data)


def test_a_record_with_more_in_it_is_refused() -> None:
    document = json.loads(RECORD.to_json())
    with pytest.raises(RequestError):
        CommitRecord.from_json(json.dumps({**document, "more": 1}).encode())
