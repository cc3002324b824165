"""Signed messages: nobody else can command an agent or speak for one, and nothing counts twice."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.jobs.wire import LARGEST, Receiver, Sender, WireError, new_secret, secret_of


def pair(machine: str = "m1") -> tuple[Sender, Receiver]:
    secret = new_secret()
    receiver = Receiver(secret)
    return Sender(machine, secret_of(secret, machine), receiver.nonce), receiver


def test_a_message_and_its_answer() -> None:
    sender, receiver = pair()
    message = receiver.opened(*sender.sealed({"step": 7}))
    assert message["machine"] == "m1" and message["step"] == 7
    assert sender.opened(*receiver.sealed({"go": True}, message)) == {"go": True}


def test_a_message_counts_once() -> None:
    sender, receiver = pair()
    first, second = sender.sealed({}), sender.sealed({})
    receiver.opened(*second)
    for again in (first, second):
        with pytest.raises(WireError, match="seen before"):
            receiver.opened(*again)


def test_what_was_recorded_is_no_use_after_a_restart() -> None:
    secret = new_secret()
    first, second = Receiver(secret), Receiver(secret)
    sealed = Sender("m1", secret_of(secret, "m1"), first.nonce).sealed({})
    with pytest.raises(WireError, match="another controller"):
        second.opened(*sealed)


def test_a_machine_cannot_speak_for_another() -> None:
    secret = new_secret()
    receiver = Receiver(secret)
    thief = Sender("m2", secret_of(secret, "m1"), receiver.nonce)
    with pytest.raises(WireError, match="wrong signature"):
        receiver.opened(*thief.sealed({}))


@given(place=st.integers(0), bit=st.integers(0, 7))
def test_any_changed_bit_is_seen(place: int, bit: int) -> None:
    sender, receiver = pair()
    body, signature = sender.sealed({"shutdown": False})
    changed = bytearray(body)
    changed[place % len(changed)] ^= 1 << bit
    with pytest.raises(WireError):
        receiver.opened(bytes(changed), signature)


def test_an_answer_of_somebody_else_and_an_older_answer_are_refused() -> None:
    sender, receiver = pair()
    old = receiver.sealed({"shutdown": True}, receiver.opened(*sender.sealed({})))
    receiver.opened(*sender.sealed({}))
    with pytest.raises(WireError, match="not signed"):
        sender.opened(*old)
    with pytest.raises(WireError, match="not signed"):
        sender.opened(json.dumps({"shutdown": True}).encode(), "0" * 64)


def test_an_answer_of_another_session_is_refused() -> None:
    """Each session counts from 1: what was recorded of one would else be an answer in the next."""
    secret = new_secret()
    first, second = Receiver(secret), Receiver(secret)
    old = Sender("m1", secret_of(secret, "m1"), first.nonce)
    recorded = first.sealed({}, first.opened(*old.sealed({})))
    for receiver in (first, second):
        new = Sender("m1", secret_of(secret, "m1"), receiver.nonce)
        receiver.opened(*new.sealed({}))
        with pytest.raises(WireError, match="not signed"):
            new.opened(*recorded)
    same = Sender("m1", secret_of(secret, "m1"), second.nonce, old.session)
    second.opened(*same.sealed({}))
    with pytest.raises(WireError, match="not signed"):
        same.opened(*recorded)


def test_what_is_no_message_is_refused() -> None:
    for body in [
        b"",
        b"[]",
        b"{",
        b"1",
        b"{}",
        b'{"machine": 1}',
        b"[" * 100_000,
        b"x" * (LARGEST + 1),
    ]:
        with pytest.raises(WireError):
            pair()[1].opened(body, "")
