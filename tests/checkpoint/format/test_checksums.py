"""Checksums in the image, all at once and chunk by chunk."""

from __future__ import annotations

import io
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoint.images import chunk_crcs, noise, zip_shard

from deepvm.checkpoint.format import checksums
from deepvm.checkpoint.format.checksums import crc32, finish, seal
from deepvm.checkpoint.format.layout import CHUNK_BYTES, ChecksumField, Layout, Segment


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_fast_crc_is_that_of_zip_files(one: bytes, other: bytes) -> None:
    assert crc32(one) == zlib.crc32(one)
    assert crc32(other, crc32(one)) == zlib.crc32(one + other)
    assert crc32(memoryview(bytearray(one))) == zlib.crc32(one)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=6).map(tuple), st.integers(1, 4000))
def test_a_zip_file_gets_its_checksums(records: tuple[int, ...], chunk_bytes: int) -> None:
    shard, other = zip_shard(3, records), zip_shard(3, records)
    if any(records):
        assert zipfile.ZipFile(io.BytesIO(bytes(shard.image))).testzip() is not None or not any(
            records
        )
    finish(shard.image, shard.layout)
    assert zipfile.ZipFile(io.BytesIO(bytes(shard.image))).testzip() is None
    once = bytes(shard.image)
    finish(shard.image, shard.layout)
    assert bytes(shard.image) == once
    # The same in small steps, each of which leaves alone what was declared final.
    crcs: list[int] = []
    last = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "STEP_BYTES", chunk_bytes)
        for end in seal(other.image, other.layout, crcs):
            assert last < end <= len(other.image)
            assert bytes(other.image[:end]) == once[:end]
            last = end
    assert last == len(once)
    assert tuple(crcs) == chunk_crcs(memoryview(once), chunk_bytes)


def test_a_checksum_over_the_border_of_two_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = noise(40)
    layout = Layout(40, ((Segment(0, 40),),), (ChecksumField(18, 0, 18), ChecksumField(36, 22, 14)))
    for chunk_bytes in range(1, 41):
        monkeypatch.setattr(checksums, "STEP_BYTES", chunk_bytes)
        image = bytearray(data)
        seen = [bytes(image[:end]) for end in seal(memoryview(image), layout)]
        assert all(bytes(image).startswith(part) for part in seen)
        assert image[18:22] == zlib.crc32(data[:18]).to_bytes(4, "little")
        assert image[36:] == zlib.crc32(data[22:36]).to_bytes(4, "little")


def test_one_checksum_for_each_chunk() -> None:
    for size in [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1]:
        data = noise(size)
        starts = range(0, size, CHUNK_BYTES)
        assert chunk_crcs(memoryview(data)) == tuple(
            zlib.crc32(data[s : s + CHUNK_BYTES]) for s in starts
        )
