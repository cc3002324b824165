"""A file holds what was written, or is seen to be damaged: cut off, flipped, forged, of another
version, or no file.
"""

import hashlib
import json
import os
import random
import shutil
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.catalog_signals import DATA, NOW, REGION, file_of, signal

from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.signal import Signal
from deepvm.catalog.signals.signal_file import decode, encode
from deepvm.errors import DataError


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", "me")


NAMES = st.text(max_size=12)
PRICES = st.decimals(min_value="0.000001", max_value=10**6, places=6).map(str)
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(timezone.utc))
SOME_DATA = st.one_of(
    st.tuples(st.just("on-demand"), st.dictionaries(NAMES, PRICES, min_size=1)),
    st.tuples(
        st.just("spot"),
        st.dictionaries(
            NAMES, st.dictionaries(NAMES, st.tuples(PRICES, NAMES).map(list)), min_size=1
        ),
    ),
    st.tuples(
        st.just("history:7"),
        st.dictionaries(NAMES, st.dictionaries(NAMES, st.lists(st.lists(PRICES)))),
    ),
    st.tuples(st.just("advisor"), st.dictionaries(NAMES, st.integers(0, 4))),
    st.tuples(
        st.just("specs"),
        st.dictionaries(
            NAMES,
            st.dictionaries(
                NAMES,
                st.one_of(
                    st.none(),
                    st.booleans(),
                    st.integers(),
                    st.floats(allow_nan=False, allow_infinity=False),
                    NAMES,
                ),
            ),
            min_size=1,
        ),
    ),
)


@given(SOME_DATA, TIMES, TIMES, st.text(), st.dictionaries(NAMES, st.integers(0, 10**9)))
def test_any_signal_survives(kind_and_data, fetched, observed, source, refused):
    kind, data = kind_and_data
    written = Signal(kind, REGION, observed, source, data, refused)
    stored = decode(encode(written, fetched).decode())
    assert stored.fetched_at == fetched
    assert stored == Signal(kind, REGION, observed, source, data, refused, "cache")


def damaged(cache, kind="spot"):
    """Read a file that must not be trusted; what the note says."""
    assert cache.read(REGION, kind, NOW) is None
    (note,) = cache.take_notes()
    assert str(file_of(cache, kind)) in note
    # Out of the way, said once
    assert cache.read(REGION, kind, NOW) is None and cache.take_notes() == ()
    return note


def test_cut_off_anywhere(cache):
    cache.write(signal("specs"), NOW)
    whole = file_of(cache, "specs").read_bytes()
    for length in range(len(whole)):
        file_of(cache, "specs").write_bytes(whole[:length])
        assert "damaged" in damaged(cache, "specs"), length
    aside = [p.name for p in file_of(cache).parent.iterdir()]
    assert aside == ["specs.json.damaged"]  # at most one is kept


def test_any_flipped_bit(cache):
    cache.write(signal(refused={"zero price": 3}), NOW)
    whole = file_of(cache).read_bytes()
    generator = random.Random(7)
    for place in range(len(whole)):
        bad = bytearray(whole)
        bad[place] ^= 1 << generator.randrange(8)
        file_of(cache).write_bytes(bad)
        assert cache.read(REGION, "spot", NOW) is None, (place, bytes(bad))
        # The number of another version makes it somebody else's file, not damage.
        assert cache.take_notes() or whole[place : place + 1] == b"1"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n",
        b"{}",
        b"null",
        b"[]",
        b"\x00" * 5000,
        b"\xff\xfe{",
        b'{"schema_version":"deepvm.signal/1"}',
        b"[" * 99999,
    ],
    ids=["empty", "blank", "object", "null", "list", "zeros", "utf-16", "no hash", "deep"],
)
def test_garbage(content, cache):
    cache.write(signal(), NOW)
    file_of(cache).write_bytes(content)
    damaged(cache)
    assert file_of(cache).with_name("spot.json.damaged").read_bytes() == content


def sealed(text):
    """A file with the right hash and whatever else."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"schema_version":"deepvm.signal/1","sha256":"{digest}",\n{text}'


HEAD = {
    "kind": "spot",
    "region": REGION,
    "fetched_at": "2026-11-21T09:30:00+00:00",
    "observed_at": "2026-11-21T09:30:00+00:00",
    "source": "x",
    "refused": {},
    "data": DATA["spot"],
}


@pytest.mark.parametrize(
    "change",
    [
        {"data": []},
        {"data": {"g4dn.xlarge": "0.1"}},
        {"data": {}},
        {"data": None},
        {"fetched_at": "2026-11-21T09:30:00"},
        {"fetched_at": "2026-11-21T09:30:00+09:00"},
        {"fetched_at": 5},
        {"observed_at": "yesterday"},
        {"refused": {"zero price": "3"}},
        {"refused": []},
        {"source": None},
        {"kind": 3},
        {"kind": "weather"},
        {"kind": "on-demand"},
        {"region": "eu-west-1"},
    ],
    ids=str,
)
def test_a_right_hash_is_not_enough(change, cache):
    file_of(cache).parent.mkdir(parents=True)
    file_of(cache).write_text(sealed(json.dumps(HEAD)[1:]))
    assert cache.read(REGION, "spot", NOW) is not None
    file_of(cache).write_text(sealed(json.dumps(HEAD | change)[1:]))
    damaged(cache)


@pytest.mark.parametrize("missing", HEAD)
def test_a_head_without_something(missing, cache):
    file_of(cache).parent.mkdir(parents=True)
    file_of(cache).write_text(
        sealed(json.dumps({k: v for k, v in HEAD.items() if k != missing})[1:])
    )
    damaged(cache)


def test_nesting_too_deep_to_read_is_damage():
    with pytest.raises(DataError):
        decode(sealed('"data":' + "[" * 200_000))


def test_a_file_of_another_version_is_left_alone(cache):
    cache.write(signal(), NOW)
    other = file_of(cache).read_text().replace("signal/1", "signal/2")
    file_of(cache).write_text(other)
    assert cache.read(REGION, "spot", NOW) is None
    assert cache.take_notes() == () and file_of(cache).read_text() == other
    assert [e.state for e in cache.entries(NOW)] == ["other version"]
    cache.write(signal(), NOW)
    assert cache.read(REGION, "spot", NOW) is not None


def test_a_file_in_the_place_of_another(cache):
    cache.write(signal("on-demand"), NOW)
    shutil.copy(file_of(cache, "on-demand"), file_of(cache))
    assert "on-demand of us-east-1" in damaged(cache)


def make_device(path):
    path.symlink_to("/dev/zero")


def make_huge(path):
    with path.open("wb") as stream:
        stream.truncate(2**40)


@pytest.mark.parametrize(
    "make",
    [make_device, make_huge, Path.mkdir, os.mkfifo, lambda p: p.symlink_to(p)],
    ids=["device", "huge", "folder", "pipe", "loop"],
)
def test_files_that_are_none(make, cache):
    file_of(cache).parent.mkdir(parents=True)
    make(file_of(cache))
    damaged(cache)
    assert cache.write(signal(), NOW) and cache.read(REGION, "spot", NOW) is not None
    make(file_of(cache, "advisor"))  # and without a read before
    cache.write(signal("advisor"), NOW)
    assert not Path("/dev/zero").is_file()


def test_a_link_is_replaced_and_never_written_through(cache, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file_of(cache).parent.mkdir(parents=True)
    file_of(cache).symlink_to(victim)
    assert cache.write(signal(), NOW)
    assert victim.read_text() == "precious" and not file_of(cache).is_symlink()
