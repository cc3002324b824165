"""Frames, their limits, and the proof of the token."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pace import soon

from deepvm.checkpoint.format.layout import CHUNK_BYTES, Ranges, Segment, runs
from deepvm.checkpoint.network import protocol
from deepvm.checkpoint.network.protocol import (
    BrokenError,
    Channel,
    Kind,
    RequestRefused,
    admit,
    introduce,
)


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    left, right = socket.socketpair()
    channels = Channel(left), Channel(right)
    yield channels
    for channel in channels:
        channel.close()


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, Channel]]:
    """A socket for arbitrary bytes, and the channel that reads them."""
    left, right = socket.socketpair()
    channel = Channel(right)
    yield left, channel
    left.close()
    channel.close()


def test_a_frame_arrives(pair: tuple[Channel, Channel]) -> None:
    pair[0].send(Kind.HELLO, {"job": "ä", "rank": 3})
    frame = pair[1].receive(idle_s=1)
    assert (frame.kind, frame.body) == (Kind.HELLO, {"job": "ä", "rank": 3})
    pair[0].send(Kind.PING)
    assert pair[1].receive(idle_s=1).body == {}


def test_data_arrives_where_it_belongs(pair: tuple[Channel, Channel]) -> None:
    payload = bytes(range(256)) * 100
    thread = threading.Thread(
        target=pair[0].send_data, args=(7, memoryview(payload)), kwargs={"label": "x"}
    )
    thread.start()
    kind, length = pair[1].header(idle_s=1)
    piece = pair[1].data_header(length)
    place = bytearray(piece.length)
    pair[1].read_into(memoryview(place), limit_s=1)
    thread.join()
    assert (kind, piece.offset, piece.crc) == (
        Kind.DATA,
        7,
        zlib.crc32(payload),
    ) and place == payload


HEAD = struct.Struct("!4sBI")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak this protocol"),
        (HEAD.pack(b"DVM1", 99, 0), "unknown kind 99"),
        (HEAD.pack(b"DVM1", Kind.HELLO, 2**32 - 1), "at most 65536"),
        (HEAD.pack(b"DVM1", Kind.HELLO, 65537), "at most 65536"),
        (HEAD.pack(b"DVM1", Kind.HELLO, 5) + b"[1,2]", "without a JSON object"),
        (HEAD.pack(b"DVM1", Kind.HELLO, 5) + b"{nope", "without JSON"),
        (HEAD.pack(b"DVM1", Kind.HELLO, 60000) + b"[" * 60000, "without JSON"),
        (HEAD.pack(b"DVM1", Kind.HELLO, 6000) + b'{"a":' + b"9" * 5994 + b"}", "without JSON"),
    ],
)
def test_what_is_no_frame_is_refused(
    wire: tuple[socket.socket, Channel], data: bytes, words: str
) -> None:
    wire[0].sendall(data)
    with pytest.raises(BrokenError, match=words):
        _ = wire[1].receive(idle_s=1).body


@pytest.mark.parametrize(
    ("length", "offset", "size"),
    [(15, 0, 0), (16, 0, 0), (20, 0, 5), (16 + CHUNK_BYTES + 1, 0, CHUNK_BYTES + 1)],
)
def test_data_that_lies_about_its_length(
    wire: tuple[socket.socket, Channel], length: int, offset: int, size: int
) -> None:
    wire[0].sendall(HEAD.pack(b"DVM1", Kind.DATA, length) + struct.pack("!QII", offset, size, 0))
    _, found = wire[1].header(idle_s=1)
    with pytest.raises(BrokenError, match="DATA of"):
        wire[1].data_header(found)


def test_silence_ends(pair: tuple[Channel, Channel]) -> None:
    with pytest.raises(TimeoutError):
        pair[1].receive(idle_s=0.05)


def test_drops_now_and_then_are_not_progress(wire: tuple[socket.socket, Channel]) -> None:
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.02):
            wire[0].send(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with soon(1), pytest.raises(OSError):
        wire[1].read_into(memoryview(bytearray(10000)), limit_s=0.2)
    stop.set()
    thread.join()


def test_a_peer_that_goes(pair: tuple[Channel, Channel]) -> None:
    assert pair[1].idle()
    pair[0].send(Kind.PING)
    assert not pair[1].idle()  # something came unasked
    pair[1].receive(idle_s=1)
    pair[0].close()
    assert not pair[1].idle()
    with pytest.raises(BrokenError, match="closed"):
        pair[1].receive(idle_s=1)


def run_both(first: Callable[[], object], second: Callable[[], object]) -> list[object]:
    results: list[object] = [None, None]

    def one(number: int, function: Callable[[], object]) -> None:
        try:
            results[number] = function()
        except Exception as error:
            results[number] = error

    thread = threading.Thread(target=one, args=(0, first))
    thread.start()
    one(1, second)
    thread.join(5)
    return results


def node_side(channel: Channel, token: bytes) -> None:
    try:
        admit(channel, token)
    except RequestRefused as error:
        channel.send(Kind.ERROR, {"code": error.code, "message": str(error)})
        raise


def test_both_know_the_token(pair: tuple[Channel, Channel]) -> None:
    assert run_both(lambda: node_side(pair[0], b"t"), lambda: introduce(pair[1], b"t")) == [
        None,
        None,
    ]


def test_a_wrong_token_is_named_on_both_sides(pair: tuple[Channel, Channel]) -> None:
    node, trainer = run_both(lambda: node_side(pair[0], b"t"), lambda: introduce(pair[1], b"u"))
    assert isinstance(node, RequestRefused) and node.code == "token"
    assert isinstance(trainer, RequestRefused) and "token is wrong" in str(trainer)


def test_an_impostor_that_lets_everybody_in_is_found(pair: tuple[Channel, Channel]) -> None:
    def impostor() -> None:
        pair[0].send(Kind.CHALLENGE, {"nonce": "00" * 32})
        proof = pair[0].receive(idle_s=1)
        pair[0].send(Kind.PROVED, {"mac": proof.body["mac"]})  # reflects what it was sent

    _, trainer = run_both(impostor, lambda: introduce(pair[1], b"t"))
    assert isinstance(trainer, RequestRefused) and "does not know the token itself" in str(trainer)


@pytest.mark.parametrize("job", ["", "resnet-7"])
def test_the_proof_is_hmac_over_both_nonces(pair: tuple[Channel, Channel], job: str) -> None:
    """Written out by hand, so that a change of the protocol is seen.

    Of one job the secret is made of the node's.
    """
    secret = (
        hmac.new(b"t", b"deepvm job\0" + job.encode(), hashlib.sha256).digest() if job else b"t"
    )

    def trainer() -> str:
        theirs = bytes.fromhex(pair[1].receive(idle_s=1).body["nonce"])
        prefix = b"deepvm memory node 1\0"
        mac = hmac.new(
            secret, prefix + b"trainer\0" + theirs + b"n" * 32, hashlib.sha256
        ).hexdigest()
        proof = {"nonce": (b"n" * 32).hex(), "mac": mac}
        pair[1].send(Kind.PROOF, {**proof, "job": job} if job else proof)
        answer = pair[1].receive(idle_s=1).body["mac"]
        expected = hmac.new(
            secret, prefix + b"node\0" + b"n" * 32 + theirs, hashlib.sha256
        ).hexdigest()
        return "same" if answer == expected else "other"

    assert run_both(lambda: admit(pair[0], b"t"), trainer) == [job, "same"]


@pytest.mark.parametrize(
    "body",
    [
        b"x" * 513,
        b"{}",
        b"[]",
        json.dumps({"nonce": "zz", "mac": "00"}).encode(),
        b'{"nonce": "00", "mac": ""}',
        b"\xff",
    ],
)
def test_strangers_get_little(wire: tuple[socket.socket, Channel], body: bytes) -> None:
    wire[0].sendall(HEAD.pack(b"DVM1", Kind.PROOF, len(body)) + body)
    with pytest.raises((BrokenError, RequestRefused)):
        admit(wire[1], b"t")


def test_a_silent_stranger_has_its_time(
    wire: tuple[socket.socket, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "PROOF_S", 0.1)
    with soon(1), pytest.raises(OSError):
        admit(wire[1], b"t")


SMALL = st.integers(0, 40)


@given(
    st.lists(st.tuples(SMALL, SMALL)), SMALL, SMALL, st.lists(st.tuples(SMALL, st.integers(1, 9)))
)
def test_ranges_are_sets_of_bytes(
    pairs: list[tuple[int, int]], start: int, end: int, within: list[tuple[int, int]]
) -> None:
    ranges, model = Ranges(), set()
    for a, b in pairs:
        ranges.add(a, b)
        model |= set(range(a, b))
    asked = set(range(start, end))
    assert {x for a, b in ranges for x in range(a, b)} == model
    assert all(
        before[1] < after[0] for before, after in zip(list(ranges), list(ranges)[1:], strict=False)
    )
    assert ranges.covers(start, end) == (asked <= model)
    assert ranges.touches(start, end) == bool(asked & model)
    segments = [Segment(*w) for w in within]
    inside = {x for s in segments for x in range(s.offset, s.offset + s.length)}
    assert {x for a, b in ranges.missing(segments) for x in range(a, b)} == inside - model


def test_neighbors_are_joined() -> None:
    assert runs([Segment(10, 5), Segment(0, 10), Segment(20, 1)]) == (
        Segment(0, 15),
        Segment(20, 1),
    )
