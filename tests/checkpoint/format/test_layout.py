"""Layouts come from whoever has a token: what cannot be a file is refused, whatever it is."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.checkpoint.format.layout import MOST_BYTES, ChecksumField, Layout, Segment, within
from deepvm.errors import RequestError


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    lengths = draw(st.lists(st.integers(1, 5000), min_size=1, max_size=12))
    world = draw(st.integers(1, 4))
    shards: list[list[Segment]] = [[] for _ in range(world)]
    offset = 0
    fields = []
    for length in lengths:
        shards[draw(st.integers(0, world - 1))].append(Segment(offset, length))
        if length > 8 and draw(st.booleans()):
            fields.append(
                ChecksumField(offset + length - 4, offset, length - draw(st.integers(4, 8)))
            )
        offset += length
    return Layout(offset, tuple(map(tuple, shards)), tuple(fields))


@given(layouts())
def test_a_layout_survives_json(layout: Layout) -> None:
    again = Layout.from_json(layout.to_json())
    assert again == layout
    assert again.digest == layout.digest
    assert again.world == len(layout.shards)


@given(layouts(), layouts())
def test_digests_tell_layouts_apart(one: Layout, other: Layout) -> None:
    assert (one.digest == other.digest) == (one == other)


WHOLE = ((Segment(0, 100),),)


def test_what_cannot_be_a_file_is_refused() -> None:
    for size, shards, fields in [
        (0, WHOLE, ()),
        (-1, WHOLE, ()),
        (MOST_BYTES + 1, ((Segment(0, MOST_BYTES + 1),),), ()),
        (100, (), ()),
        (100, ((),), ()),
        (101, WHOLE, ()),
        (99, WHOLE, ()),
        (100, ((Segment(0, 50),), (Segment(49, 51),)), ()),  # overlap
        (100, ((Segment(0, 50),), (Segment(51, 49),)), ()),  # hole
        (100, ((Segment(0, 100), Segment(100, 0)),), ()),  # empty
        (100, ((Segment(-1, 101),),), ()),
        (100, ((Segment(0, 100),), (Segment(0, 100),)), ()),  # twice
        (100, WHOLE, (ChecksumField(97, 0, 10),)),  # over the end
        (100, WHOLE, (ChecksumField(-1, 10, 10),)),
        (100, WHOLE, (ChecksumField(0, 90, 11),)),
        (100, WHOLE, (ChecksumField(0, 10, -1),)),
        (100, WHOLE, (ChecksumField(10, 13, 10),)),  # its last byte is in its range
        (100, WHOLE, (ChecksumField(10, 0, 11),)),  # its first byte is in its range
        # Inside another's range
        (100, WHOLE, (ChecksumField(0, 10, 20), ChecksumField(15, 40, 20))),
        (100, WHOLE, (ChecksumField(0, 10, 20), ChecksumField(2, 40, 20))),  # over another
        (100, WHOLE, (ChecksumField(0, 10, 20), ChecksumField(0, 40, 20))),  # in the same place
        (100, WHOLE, tuple(ChecksumField(0, 10 + i, 80) for i in range(5))),  # much work
    ]:
        with pytest.raises(RequestError):
            Layout(size, shards, fields)


def test_a_checksum_may_stand_twice_and_touch_its_range() -> None:
    Layout(100, WHOLE, (ChecksumField(0, 4, 20), ChecksumField(24, 4, 20), ChecksumField(96, 0, 0)))


DOCUMENT = json.loads(Layout(100, WHOLE, (ChecksumField(0, 4, 20),)).to_json())


@pytest.mark.parametrize("key", list(DOCUMENT))
@pytest.mark.parametrize(
    "value", [None, "x", 1.5, True, [], {}, [[]], [[[1]]], [["a", "b"]], [[[0, 1.0]]], -1]
)
def test_documents_of_others_are_refused(key: str, value: object) -> None:
    if (key, value) == ("fields", []):
        return
    with pytest.raises(RequestError):
        Layout.from_json(json.dumps({**DOCUMENT, key: value}).encode())


def test_what_is_no_document_is_refused() -> None:
    for data in [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"schema_version": 1}',
    ]:
        with pytest.raises(RequestError):
            Layout.from_json(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda s: st.lists(s, max_size=4),
    )
)
def test_any_json_is_a_layout_or_refused(value: object) -> None:
    for key in DOCUMENT:
        with contextlib.suppress(RequestError):
            Layout.from_json(json.dumps({**DOCUMENT, key: value}).encode())


def test_a_part_is_found_as_fast_among_the_last_shares_as_among_the_first() -> None:
    """A state sharded by columns has a hundred thousand of them, and asks for each."""
    shares = [Segment(256 * number, 128) for number in range(100_000)]
    took = []
    for first in (0, len(shares) - 1000):
        start = time.perf_counter()
        for share in shares[first : first + 1000]:
            assert within(share, shares) == [(0, 128)]
        took.append(time.perf_counter() - start)
    assert took[1] < 20 * took[0]
