"""On the head: nothing is done that is not in the mirror, and nothing at all once another head has
the job.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.jobs.memory_bucket import NAME, HeadCloud, head_in, place_of, submitted
from support.jobs.runs import until

from deepvm.errors import DataError
from deepvm.jobs.cloud import ChangedError, UnknownError
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.head import mirror_keeper, remote
from deepvm.jobs.head.mirror import (
    ANSWERS,
    COMMANDS,
    MIRROR,
    FencedError,
    HeadState,
    decoded,
    encoded,
)
from deepvm.jobs.head.mirror_keeper import PULSE, StateReplicator
from deepvm.jobs.history.history import History
from deepvm.jobs.submission import secret_in
from deepvm.jobs.wire import USER, Receiver, Sender, secret_of


class Head:
    """One that has begun, with its threads."""

    def __init__(self, folder: Path, cloud: HeadCloud, number: int) -> None:
        self.folder, self.cloud = folder, cloud
        self.history, self.keeper = head_in(
            folder, cloud, number, decoded(cloud.bucket.objects[MIRROR][0])
        )

    def take(self, nonce: str = "nonce") -> None:
        self.keeper.take(self.history.world(NAME), self.history, self.cloud, nonce)

    def step(self, **changes: object) -> JobState:
        before = self.history.world(NAME)
        world = replace(before, now_s=before.now_s + 1, **changes)  # type: ignore[arg-type]
        self.history.commit(NAME, before, world, [])
        return world

    def kept(self, limit_s: float = 10.0) -> None:
        """As the controller waits; the threads run meanwhile."""

        async def wait() -> None:
            self.keeper.attend(
                Deaf(), asyncio.get_running_loop(), lambda: History.open(place_of(self.folder))
            )
            try:
                await asyncio.wait_for(self.keeper.kept(), limit_s)
            finally:
                await asyncio.to_thread(self.keeper.leave)

        asyncio.run(wait())


class Deaf:
    """A controller that hears no command; ``given_up``: why it has been told to end."""

    def __init__(self) -> None:
        self.given_up: list[Exception] = []

    async def handle(self, body: bytes, signature: str) -> tuple[bytes, str]:
        raise AssertionError

    def give_up(self, error: Exception) -> None:
        self.given_up.append(error)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[HeadCloud]:
    """With one head that was asked for."""
    found = HeadCloud()
    (tmp_path / "laptop").mkdir()
    history, row = submitted(tmp_path / "laptop")
    remote.RemoteController(row, history, found).start()
    yield found
    history.close()


@pytest.fixture
def head(tmp_path: Path, cloud: HeadCloud) -> Iterator[Head]:
    found = Head(tmp_path / "head", cloud, 1)
    yield found
    found.history.close()


def generation(cloud: HeadCloud) -> int:
    return int(json.loads(decoded(cloud.bucket.objects[MIRROR][0])["job"]["world"])["generation"])


def test_what_is_kept_is_in_the_mirror(head: Head, cloud: HeadCloud) -> None:
    head.take()
    head.step(generation=4)
    assert generation(cloud) == 0
    head.kept()
    assert generation(cloud) == 4


def test_while_the_bucket_is_away_nothing_is_kept(head: Head, cloud: HeadCloud) -> None:
    head.take()
    head.step(generation=4)
    cloud.bucket.down = True
    with pytest.raises(asyncio.TimeoutError):
        head.kept(1.5)
    cloud.bucket.down = False
    head.keeper._over = False
    head.kept()
    assert generation(cloud) == 4


@pytest.mark.parametrize("lost", [1, 2])
def test_lost_replies_are_its_own(head: Head, cloud: HeadCloud, lost: int) -> None:
    head.take()
    head.step(generation=4)
    cloud.bucket.lose = lost
    head.kept()
    head.step(generation=5)
    head.keeper._over = False
    head.kept()
    assert generation(cloud) == 5


def test_of_two_heads_the_older_one_does_nothing_more(
    head: Head, cloud: HeadCloud, tmp_path: Path
) -> None:
    head.take()
    copy = {**decoded(cloud.bucket.objects[MIRROR][0]), "head": 2}
    cloud.bucket.put(
        MIRROR, encoded({k: copy[k] for k in ("job", "machines", "events", "samples")}, 2, "", 0)
    )
    head.step(generation=9)
    with pytest.raises(FencedError, match="another head"):
        head.kept()
    assert generation(cloud) == 0
    with pytest.raises(FencedError):
        asyncio.run(head.keeper.kept())
    with pytest.raises(FencedError):  # nor does a controller that is started again there
        head.take()
    with pytest.raises(FencedError):
        head.keeper.finish(head.history)
    newer = Head(tmp_path / "newer", cloud, 2)
    newer.take()
    assert decoded(cloud.bucket.objects[MIRROR][0])["writer"] == "nonce"
    newer.history.close()


def test_one_that_has_nothing_to_write_down_hears_of_another_head_too(
    head: Head, cloud: HeadCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on answering machines that have not found the other one, and cost what a head
    does.
    """
    monkeypatch.setattr(mirror_keeper, "EACH_S", 0.05)
    monkeypatch.setattr(mirror_keeper, "BEAT_S", 0.0)
    head.take()
    controller = Deaf()
    copy = decoded(cloud.bucket.objects[MIRROR][0])
    cloud.bucket.put(
        MIRROR, encoded({k: copy[k] for k in ("job", "machines", "events", "samples")}, 2, "", 0)
    )

    async def wait() -> None:
        head.keeper.attend(
            controller, asyncio.get_running_loop(), lambda: History.open(place_of(head.folder))
        )
        await asyncio.to_thread(until, lambda: controller.given_up, 10)
        await asyncio.to_thread(head.keeper.leave)

    asyncio.run(wait())
    assert isinstance(controller.given_up[0], FencedError)


def test_a_history_that_fails_in_a_way_that_nobody_foresaw_is_read_again(
    head: Head, cloud: HeadCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing is kept any more, and whatever waits for it waits for ever: orders, releases,
    the end.
    """
    monkeypatch.setattr(mirror_keeper, "_AGAIN_S", 0.05)
    head.take()
    head.step(generation=4)
    failures: list[Exception] = [
        DataError("no place"),
        sa.exc.OperationalError("SELECT", {}, Exception("disk I/O")),
    ]
    copy = History.copy

    def opened() -> History:
        if len(failures) == 2:
            raise failures.pop(0)
        return History.open(place_of(head.folder))

    def copied(history: History, name: str, after: int = 0) -> object:
        if failures:
            raise failures.pop()
        return copy(history, name, after)

    monkeypatch.setattr(History, "copy", copied)

    async def wait() -> None:
        head.keeper.attend(Deaf(), asyncio.get_running_loop(), opened)
        try:
            await asyncio.wait_for(head.keeper.kept(), 10.0)
        finally:
            await asyncio.to_thread(head.keeper.leave)

    asyncio.run(wait())
    assert generation(cloud) == 4 and not failures


def test_the_final_document_is_written_through_conflicts(
    head: Head, cloud: HeadCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 refuses a write while another of the same object, whose reply was lost, is under way."""
    monkeypatch.setattr(mirror_keeper, "_AGAIN_S", 0.05)
    head.take()
    head.history.finish(NAME, {"state": "done"})
    replace_, left = cloud.bucket.replace, [1] * 4

    def busy(key: str, data: bytes, tag: str | None) -> str:
        if left:
            left.pop()
            raise ChangedError(key)
        return replace_(key, data, tag)

    monkeypatch.setattr(cloud.bucket, "replace", busy)
    head.keeper.finish(head.history)
    assert json.loads(decoded(cloud.bucket.objects[MIRROR][0])["job"]["result"]) == {
        "state": "done"
    }


def test_the_final_document_is_written_whatever_is_wrong(
    head: Head, cloud: HeadCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the job is never over for its user."""
    monkeypatch.setattr(mirror_keeper, "_AGAIN_S", 0.05)
    head.take()
    head.history.finish(NAME, {"state": "done"})
    send, failures = (
        head.keeper._logs.send,
        [KeyError("sent"), sa.exc.OperationalError("SELECT", {}, Exception("I/O"))],
    )

    def sometimes(*, last: bool = False) -> None:
        if failures:
            raise failures.pop()
        send(last=last)

    monkeypatch.setattr(head.keeper._logs, "send", sometimes)
    head.keeper.finish(head.history)
    assert json.loads(decoded(cloud.bucket.objects[MIRROR][0])["job"]["result"]) == {
        "state": "done"
    }


def test_what_is_wrong_with_logs_keeps_no_command_from_being_heard(
    head: Head, cloud: HeadCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_keeper, "LOOK_S", 0.05)
    head.take()

    def wrong() -> None:
        raise KeyError("sent")

    monkeypatch.setattr(head.keeper._logs, "send", wrong)
    controller = Controller("00" * 32)

    async def wait() -> None:
        head.keeper.attend(
            controller, asyncio.get_running_loop(), lambda: History.open(place_of(head.folder))
        )
        for number in range(2):  # the first one is answered before the logs fail
            cloud.bucket.put(f"{COMMANDS}{number}", b"junk")
            await asyncio.to_thread(
                until, lambda key=f"{COMMANDS}{number}": key not in cloud.bucket.objects, 5
            )
        await asyncio.to_thread(head.keeper.leave)

    asyncio.run(wait())


def test_a_head_that_was_lost_before_it_began_has_cost_something_too(
    head: Head, cloud: HeadCloud, tmp_path: Path
) -> None:
    (launched_s,) = cloud.alive.values()
    cloud.ended["head-1"] = launched_s, launched_s + 20.0
    cloud.alive = {"head-2": launched_s + 30.0}
    mirror = decoded(cloud.bucket.objects[MIRROR][0])
    cloud.bucket.put(
        MIRROR, encoded({k: mirror[k] for k in ("job", "machines", "events", "samples")}, 2, "", 0)
    )
    history, keeper = head_in(
        tmp_path / "other", cloud, 2, decoded(cloud.bucket.objects[MIRROR][0])
    )
    world = keeper.take(history.world(NAME), history, cloud, "nonce")
    assert [(h.name, h.ended_s) for h in world.heads] == [
        ("head-1", launched_s + 20.0),
        ("head-2", None),
    ]
    assert world.heads[0].usd(world.now_s + 100) == pytest.approx(20.0)
    history.close()


def test_a_controller_that_was_killed_there_is_followed_by_another(
    head: Head, cloud: HeadCloud
) -> None:
    head.take("one")
    again = StateReplicator(NAME, 1, cloud.bucket, head.keeper._logs)
    late = head.keeper
    head.step(generation=2)
    # What the dead one had sent arrives between read and write
    cloud.bucket.early = lambda: late._put(head.history)
    world = again.take(head.history.world(NAME), head.history, cloud, "two")
    assert decoded(cloud.bucket.objects[MIRROR][0])["writer"] == "two" and generation(cloud) == 2
    assert [h.name for h in world.heads] == ["head-1"]  # it costs once


def test_a_mirror_that_is_gone_means_that_the_job_is(head: Head, cloud: HeadCloud) -> None:
    cloud.bucket.objects.clear()
    with pytest.raises(FencedError):
        head.take()


def test_the_mirror_is_written_without_news_too(
    head: Head, cloud: HeadCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its user would take the head for dead."""
    monkeypatch.setattr("deepvm.jobs.head.mirror_keeper.BEAT_S", 0.0)
    head.take()
    before = cloud.bucket.objects[MIRROR][1]
    head.keeper._put(head.history)
    assert cloud.bucket.objects[MIRROR][1] != before
    monkeypatch.setattr("deepvm.jobs.head.mirror_keeper.BEAT_S", 1e9)
    head.keeper._put(head.history)
    before = cloud.bucket.objects[MIRROR][1]
    head.keeper._put(head.history)
    assert cloud.bucket.objects[MIRROR][1] == before


def test_a_controller_that_hangs_is_taken_for_gone(
    head: Head, cloud: HeadCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads live: while they said that all is well nobody could have another head go on."""
    for name, value in (("EACH_S", 0.02), ("BEAT_S", 0.0), ("HANGS_S", 0.5)):
        monkeypatch.setattr(mirror_keeper, name, value)
    head.take()
    loop = asyncio.new_event_loop()  # nothing runs in it

    def writes(seconds: float) -> int:
        found, end_s = set[str](), time.monotonic() + seconds
        while time.monotonic() < end_s:
            found.add(cloud.bucket.objects[MIRROR][1])
            time.sleep(0.01)
        return len(found)

    head.keeper.attend(Deaf(), loop, lambda: History.open(place_of(head.folder)))
    try:
        until(lambda: writes(0.3) == 1, 5)
        head.step(generation=4)  # what it has written down is passed on all the same
        until(lambda: generation(cloud) == 4, 5)
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        until(lambda: writes(0.3) > 1, 5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
    finally:
        head.keeper.leave()
        loop.close()


def test_the_head_sees_whether_the_loop_of_its_controller_turns(
    head: Head, cloud: HeadCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the bucket does."""
    monkeypatch.setattr(mirror_keeper, "TURN_S", 0.05)
    head.take()
    cloud.bucket.down = True
    pulse = head.folder / NAME / PULSE

    def turns() -> bool:
        before = pulse.stat().st_mtime_ns
        time.sleep(0.3)
        return pulse.stat().st_mtime_ns != before

    async def controlled() -> None:
        head.keeper.attend(
            Deaf(), asyncio.get_running_loop(), lambda: History.open(place_of(head.folder))
        )
        await asyncio.to_thread(until, pulse.exists, 5)
        assert await asyncio.to_thread(turns)
        assert not turns()  # in the loop itself: it stands still
        await asyncio.to_thread(head.keeper.leave)
        await asyncio.sleep(0.2)
        assert not pulse.exists()

    asyncio.run(controlled())


class Controller:
    """The part of one that reads messages."""

    def __init__(self, secret: str) -> None:
        self.receiver, self.commands = Receiver(secret), list[str]()

    def give_up(self, error: Exception) -> None:
        raise AssertionError

    async def handle(self, body: bytes, signature: str) -> tuple[bytes, str]:
        message = self.receiver.opened(body, signature)
        self.commands.append(message["command"])
        return self.receiver.sealed({}, message)


def test_commands_are_signed_and_count_once(
    head: Head, cloud: HeadCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepvm.jobs.head.mirror_keeper.LOOK_S", 0.05)
    monkeypatch.setattr(remote, "_ANSWER_S", 2.0)
    place = tmp_path / "laptop"
    secret = secret_in(place / NAME)
    controller = Controller(secret)
    head.take(controller.receiver.nonce)
    kept: dict[str, bytes] = {}

    def ask(key: str = secret) -> dict[str, object]:
        with History.open(place_of(place)) as history:
            row = history.job(NAME)
            assert row is not None
            return remote.RemoteController(row, history, cloud).send(key, {"command": "save"})

    async def talk() -> None:
        loop = asyncio.get_running_loop()
        head.keeper.attend(controller, loop, lambda: History.open(place_of(head.folder)))
        put = cloud.bucket.put

        def recording(key: str, data: bytes) -> None:
            if key.startswith(COMMANDS):
                kept[key] = data
            put(key, data)

        monkeypatch.setattr(cloud.bucket, "put", recording)
        assert await asyncio.to_thread(ask) == {}
        assert controller.commands == ["save"]
        (key, data), *_ = kept.items()
        put(key + "-again", data)  # recorded, and sent again
        await asyncio.to_thread(until, lambda: key + "-again" not in cloud.bucket.objects, 5)
        put(f"{COMMANDS}junk", b"junk")
        await asyncio.to_thread(until, lambda: f"{COMMANDS}junk" not in cloud.bucket.objects, 5)
        with pytest.raises(DataError, match="does not answer"):
            await asyncio.to_thread(ask, "11" * 32)
        await asyncio.to_thread(head.keeper.leave)

    asyncio.run(talk())
    assert controller.commands == ["save"]
    with pytest.raises(DataError, match="does not answer"):  # nobody there
        ask()
    assert not [k for k in cloud.bucket.objects if k.startswith(COMMANDS)]


@pytest.mark.parametrize("fails", ["put", "remove"])
def test_a_command_whose_answer_cannot_be_written_is_obeyed_once(
    head: Head, cloud: HeadCloud, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Found again, it would be refused as one that was seen before, and the user's side would send
    another.
    """
    controller = Controller("00" * 32)
    sender = Sender(USER, secret_of("00" * 32, USER), controller.receiver.nonce)
    body, signature = sender.sealed({"command": "save"})
    cloud.bucket.put(
        f"{COMMANDS}1", json.dumps({"body": body.decode(), "signature": signature}).encode()
    )
    whole, left = getattr(cloud.bucket, fails), [2]

    def once(*given: object) -> None:
        if left[0]:
            left[0] -= 1
            raise UnknownError("no answer")
        whole(*given)

    def handle(body: bytes, signature: str) -> tuple[bytes, str]:
        return asyncio.run(controller.handle(body, signature))

    monkeypatch.setattr(cloud.bucket, fails, once)
    for _ in range(2):
        with pytest.raises(UnknownError):
            head.keeper._answer(f"{COMMANDS}1", handle)
    head.keeper._answer(f"{COMMANDS}1", handle)
    answer = json.loads(cloud.bucket.objects[f"{ANSWERS}1"][0])
    assert sender.opened(answer["body"].encode(), answer["signature"]) == {}
    assert controller.commands == ["save"] and not cloud.bucket.keys(COMMANDS)


def test_the_state_of_a_head(tmp_path: Path) -> None:
    assert HeadState.load(tmp_path) is None
    now_s = time.time()
    assert not HeadState(1, now_s).alive and HeadState(1, now_s, launched=True).alive
    assert not HeadState(1, now_s - 1e6, launched=True).alive
    begun = HeadState(1, now_s - 1e6, launched=True, begun=True, heard_s=now_s)
    assert begun.alive and not replace(begun, heard_s=now_s - 1e3).alive
    begun.save(tmp_path)
    assert HeadState.load(tmp_path) == begun
    (tmp_path / "head.json").write_text("[]")
    assert HeadState.load(tmp_path) is None
