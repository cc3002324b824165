"""Generations in a bucket: nothing of an older one becomes visible once a newer one has started,
whenever it arrives.

Two writers meet at every single request of the older one: the newer begins before it, after it, or
the request is carried out long after its sender was told that it failed.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint import memory_nodes as nodes
from support.checkpoint.images import noise, plain_shard
from support.checkpoint.object_store import BUCKET, Store, running
from support.effort import sampled

from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.tiers import object_store
from deepvm.checkpoint.tiers.object_store import Ledger, LedgerFile, StaleError
from deepvm.checkpoint.tiers.s3 import S3Tier
from deepvm.errors import CheckpointError

pytestmark = pytest.mark.xdist_group("object store")  # one process starts the server, once

BIG = 1000
_MOST_REQUESTS = 60


@pytest.fixture
def store() -> Iterator[Store]:
    with running() as found:
        yield found


def tier(store: Store, *, keep: int = 0) -> S3Tier:
    found = S3Tier(BUCKET, "run", endpoint=store.url, attempts=1, keep=keep)
    found._bucket.s3 = _client(store.url)  # making one takes longer than a save
    return found


@cache
def _client(url: str) -> Any:
    return S3Tier(BUCKET, endpoint=url, attempts=1)._bucket.s3


def put(to: S3Tier, version: int, seed: int) -> None:
    to.put(plain_shard(noise(BIG, seed), version), lambda level: None)


def seeds(store: Store, folder: Path) -> dict[int, int]:
    """The versions that a reader finds, each by the seed of its bytes.

    All of them can be fetched.
    """
    reader, found = tier(store), {}
    for manifest in reader.versions("job"):
        data = reader.fetch(manifest, folder).read_bytes()
        found[manifest.version] = next(seed for seed in range(100) if noise(BIG, seed) == data)
    assert reader.damaged("job") == ()
    return found


class OlderWriter:
    """Generation 1 saves version 2, as the seed 12; its requests are counted."""

    def __init__(self, store: Store) -> None:
        self.tier, self.store = tier(store, keep=2), store
        self.tier.begin("job", 1)
        put(self.tier, 1, 11)

    def save(self, at: Callable[[int], str | None]) -> bool:
        """Save; ``at`` is asked at each request for trouble with it.

        Returns whether it was acknowledged.
        """
        count = 0

        def trouble(method: str, path: str) -> str | None:
            nonlocal count
            count += 1
            return at(count)

        self.store.trouble = trouble
        try:
            put(self.tier, 2, 12)
            return True
        except CheckpointError:
            return False
        finally:
            self.store.trouble = lambda method, path: None
            self.requests = count


def newer(store: Store) -> S3Tier:
    found = tier(store, keep=2)
    found.begin("job", 2)
    return found


def requests_of_a_save(store: Store) -> int:
    writer = OlderWriter(store)
    assert writer.save(lambda number: None)
    assert 0 < writer.requests < _MOST_REQUESTS
    return writer.requests


@pytest.mark.slow
def test_a_newer_generation_begins_before_each_request(store: Store, tmp_path: Path) -> None:
    """What the older one is told is true: acknowledged, and the newer one found it.

    Or refused, and nobody does.
    """
    outcomes = set()
    for number in range(1, requests_of_a_save(store) + 1):
        store.begin()
        writer, found, left = OlderWriter(store), dict[int, int](), [number]

        def meet(
            method: str, path: str, found: dict[int, int] = found, left: list[int] = left
        ) -> None:
            left[0] -= 1
            if not left[0]:
                newer(store)
                found |= seeds(store, tmp_path)

        store.before = meet
        said = writer.save(lambda number: None)
        store.before = lambda method, path: None
        assert left[0] <= 0
        after = seeds(store, tmp_path)
        assert after == found, f"at request {number} something became visible, or went"
        assert said is (2 in found), f"at request {number}"
        outcomes.add(said)
        put(newer(store), 2, 22)
        assert seeds(store, tmp_path)[2] == 22
    assert outcomes == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["late", "lost"])
def test_each_request_arrives_late_or_its_reply_is_lost(
    store: Store, tmp_path: Path, fate: str
) -> None:
    for number in range(1, requests_of_a_save(store) + 1):
        store.begin()
        writer = OlderWriter(store)
        said = writer.save(lambda now, at=number: fate if now == at else None)
        new = newer(store)
        before = seeds(store, tmp_path)
        assert 1 in before and (2 in before or not said), f"at request {number}"
        put(new, 3, 23)
        store.deliver()
        assert seeds(store, tmp_path) == {**before, 3: 23} or seeds(store, tmp_path) == _pruned(
            before
        ), (fate, number)
        put(new, 2, 22)
        assert seeds(store, tmp_path)[2] == 22
        assert not (writer.save(lambda now: None) or 12 in seeds(store, tmp_path).values())


def _pruned(before: dict[int, int]) -> dict[int, int]:
    return {v: s for v, s in {**before, 3: 23}.items() if v > 3 - 2}


@pytest.mark.parametrize("seed", sampled(range(12)))
def test_random_orders_of_three_generations(store: Store, tmp_path: Path, seed: int) -> None:
    """Threads save and begin at random; requests fail, arrive late, and lose their replies."""
    chance = random.Random(seed)
    begun, accepted, lock = 1, dict[int, set[int]](), threading.Lock()
    tiers = {1: tier(store)}
    tiers[1].begin("job", 1)

    def trouble(method: str, path: str) -> str | None:
        return chance.choice(["late", "lost", "503 Slow Down"]) if chance.random() < 0.06 else None

    store.trouble = trouble

    def save(epoch: int, version: int) -> None:
        number = 10 * epoch + version
        with contextlib.suppress(CheckpointError):
            put(tiers[epoch], version, number)
            with lock:
                accepted.setdefault(version, set()).add(number)

    for _ in range(10):
        action = chance.random()
        if action < 0.25 and begun < 3:
            fresh = tier(store)
            with contextlib.suppress(CheckpointError):
                fresh.begin("job", begun + 1)
                begun += 1
                tiers[begun] = fresh
                store.trouble = lambda method, path: None
                before = seeds(store, tmp_path)
                store.trouble = trouble
                for version, numbers in accepted.items():
                    assert before.get(version) in numbers or _doubtful(
                        before.get(version), numbers
                    ), (before, accepted)
                with lock:  # what it finds is what counts from now on
                    accepted.clear()
                    accepted.update({v: {n} for v, n in before.items()})
        elif action < 0.85:
            threads = [
                threading.Thread(target=save, args=(epoch, chance.randint(1, 4)))
                for epoch in chance.sample(sorted(tiers), k=min(2, len(tiers)))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            store.deliver()
    store.trouble = lambda method, path: None
    store.deliver()
    final = seeds(store, tmp_path)
    for version, number in final.items():
        assert number // 10 == begun or number in accepted.get(version, ()), (
            final,
            accepted,
            begun,
        )
    for version in accepted:
        assert version in final


def _doubtful(found: int | None, numbers: set[int]) -> bool:
    """A save of the same generation that was not acknowledged may have replaced one that was."""
    return found is not None and found // 10 >= max(numbers) // 10


def test_without_the_fence_it_is_seen(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above are tested: a ledger that is written without a condition, and one that is not
    asked.
    """
    with monkeypatch.context() as patch:
        honest = S3Tier(BUCKET, endpoint=store.url)._bucket.__class__
        patch.setattr(LedgerFile, "_prove", lambda self: None)
        patch.setattr(
            honest,
            "put_if",
            lambda self, key, data, etag: bool(
                self.s3.put_object(Bucket=self.name, Key=key, Body=data)
            ),
        )
        with pytest.raises(AssertionError):
            test_a_newer_generation_begins_before_each_request(store, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "_refuse", lambda self, found, epoch: None)
        with pytest.raises(AssertionError):
            test_a_newer_generation_begins_before_each_request(store, tmp_path)


def test_it_refuses_and_says_why(store: Store, tmp_path: Path) -> None:
    old, new = tier(store), tier(store)
    old.begin("job", 1)
    put(old, 1, 1)
    new.begin("job", 2)
    assert new.epoch("job") == 2 == old.epoch("job")
    with pytest.raises(StaleError, match="s3://bucket/run: generation 1 is over: 2 has started"):
        put(old, 2, 2)
    with pytest.raises(StaleError):
        tier(store).begin("job", 1)
    with pytest.raises(StaleError):
        old.delete("job", 1)
    assert seeds(store, tmp_path) == {1: 1}
    assert store.uploads() == []
    new.begin("job", 2)
    tier(store).begin("other", 1)  # other jobs have their own


def test_a_run_without_a_number_is_not_shut_out(store: Store, tmp_path: Path) -> None:
    numbered, by_hand = tier(store), tier(store, keep=2)
    numbered.begin("job", 3)
    for version in (1, 2):
        put(numbered, version, version)
    put(by_hand, 2, 32)
    assert seeds(store, tmp_path) == {1: 1, 2: 32}
    put(by_hand, 3, 33)
    assert seeds(store, tmp_path) == {2: 32, 3: 33}  # retention counts both kinds
    put(numbered, 3, 43)
    assert seeds(store, tmp_path) == {2: 32, 3: 43}
    names = store.keys()
    assert sum(k.endswith(".pt") for k in names) == 2, "nothing stays that does not count"
    assert [m.version for m in by_hand.versions("job")] == [3, 2]


def test_a_copy_without_the_ledger_is_whole(store: Store, tmp_path: Path) -> None:
    old, new = tier(store), tier(store)
    old.begin("job", 1)
    put(old, 1, 1)
    new.begin("job", 2)
    put(new, 2, 2)
    store.client().delete_object(Bucket=BUCKET, Key="run/.job.ledger")
    assert seeds(store, tmp_path) == {1: 1, 2: 2}
    tier(store).begin("job", 1)  # as in a new bucket; it takes what is there
    assert seeds(store, tmp_path) == {1: 1, 2: 2}


def test_a_damaged_ledger_is_an_error(store: Store) -> None:
    old = tier(store)
    old.begin("job", 1)
    put(old, 1, 1)
    for data in (b"", b"[]", b"{}", b'{"schema_version": "deepvm.ledger/1", "what": 1}'):
        store.client().put_object(Bucket=BUCKET, Key="run/.job.ledger", Body=data)
        with pytest.raises(CheckpointError, match=r"run/.job.ledger is damaged"):
            old.versions("job")
        with pytest.raises(CheckpointError, match="damaged"):
            put(old, 2, 2)


def test_a_store_that_ignores_conditions_is_refused(store: Store) -> None:
    new = S3Tier(BUCKET, "run", endpoint=store.url, attempts=1)
    new._bucket.s3.meta.events.register(
        "before-sign.s3.PutObject", lambda request, **_: request.headers.__delitem__("If-Match")
    )
    with pytest.raises(CheckpointError, match="this store ignores If-Match"):
        new.begin("job", 1)


def test_a_ledger_is_read_as_it_was_written() -> None:
    state = Ledger(3, {"1": "g000000003-00000000"}, 7, "ab")
    assert Ledger.from_json(state.to_json()) == state


def test_many_writers_lose_no_entry(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_TRIES", 200)
    files = [tier(store).ledger("job") for _ in range(4)]
    files[0].begin(1)

    def add(which: int) -> None:
        for number in range(5):
            files[which].add(f"{which}-{number}", "label", 1)

    threads = [threading.Thread(target=add, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = files[0].read()
    assert found is not None and len(found.entries) == 20 and found.number == 21


def test_what_older_generations_left_is_removed(store: Store, tmp_path: Path) -> None:
    writer = OlderWriter(store)
    assert not writer.save(lambda number: "503 Slow Down" if number > 5 else None)
    names = store.keys()
    put(newer(store), 3, 23)
    assert any("000000000002" in k for k in names)
    names = store.keys()
    assert not any("000000000002" in k for k in names)
    assert seeds(store, tmp_path) == {1: 11, 3: 23}


def test_memory_nodes_that_persist_to_a_bucket(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of an older generation, cut off and alive, flushes what it still has after another
    one took over.
    """
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.url)
    layout, place = nodes.make_layout(nodes.MIB), f"s3://{BUCKET}/run"
    with nodes.running(persist=place) as cut_off, nodes.running(persist=place) as taking_over:
        old, new = nodes.tier(cut_off, "one"), nodes.tier(taking_over, "two")
        old.begin("job", 1)
        nodes.put(old, 1, layout, nodes.make_image(layout, 1))
        assert nodes.until(lambda: len(tier(store).versions("job")) == 1)
        new.begin("job", 2)
        assert [m.version for m in new.versions("job")] == [1]
        acks = nodes.put(old, 2, layout, nodes.make_image(layout, 2))
        assert nodes.until(lambda: cut_off.flusher.times["failed"] > 0)
        assert (
            Level.DURABLE not in acks.levels
            and "generation 1 is over" in cut_off.flusher.times["last_error"]
        )
        nodes.put(new, 3, layout, nodes.make_image(layout, 3))
        assert nodes.until(lambda: [m.version for m in tier(store).versions("job")] == [3, 1])
        old.close()
        new.close()
