"""Damage and failing storage, met by sharded versions of two ranks: all of a version is loaded, or
none of it.

The invariant: a save that returned is loaded, bit for bit, unless its bytes were damaged since;
what is damaged or was never finished is passed over for the version before it.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("boto3")

from support.checkpoint.failing_disk import (  # noqa: E402
    ALL_CALLS,
    ERRORS,
    accepts_what_is_missing,
    checks_no_bytes,
    failing,
    in_place_of,
    sums_of_what_is_there,
)
from support.checkpoint.memory_nodes import TOKEN  # noqa: E402
from support.checkpoint.sharded_places import (  # noqa: E402
    PLACES,
    Place,
    await_disks,
    damaged_in_turn,
    file_place,
    files,
    s3_place,
)
from support.checkpoint.sharding import Ranks, load, same, whole  # noqa: E402
from support.effort import in_ring_2  # noqa: E402

from deepvm.checkpoint import dcp as dcp_tiers  # noqa: E402
from deepvm.checkpoint.files import shared_file_write  # noqa: E402
from deepvm.checkpoint.format.manifest import (  # noqa: E402
    SUFFIX,  # noqa: E402
    Level,
    Shard,
)
from deepvm.checkpoint.node import version_registry  # noqa: E402
from deepvm.checkpoint.node.version_registry import VersionRegistry  # noqa: E402
from deepvm.checkpoint.node.versions import Reservation  # noqa: E402
from deepvm.checkpoint.tiers import checkpoint_store  # noqa: E402
from deepvm.checkpoint.tiers.replicated import ReplicatedTier  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402

SOON_S = 15.0
"""A save that fails says so at once, and holds nothing up.

The limits of all waits are a minute and more.
"""


@pytest.fixture(autouse=True)
def _token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "secret"
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(token))
    monkeypatch.setattr(dcp_tiers, "_SEEN_S", 1.0)  # only where a rank fails before it sends


# A bucket takes its time; in the quick suite its own tests have it.
@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow if name == "s3" else ()) for name in PLACES]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with PLACES[request.param](tmp_path) as made:
        yield made


@contextmanager
def training(place: Place) -> Iterator[Ranks]:
    with pytest.MonkeyPatch.context() as patch:
        ranks = Ranks(place.url, patch)
        try:
            yield ranks
        finally:
            ranks.close()


def settled(place: Place, *versions: int) -> None:
    """Save versions, and wait until they are on all disks."""
    with training(place) as ranks:
        for version in versions:
            ranks.save(version)
    await_disks(place, *versions)


# --- damage ---------------------------------------------------------------------------------------


def damage_campaign(place: Place, rounds: int, seed: int) -> None:
    """Version 2 is damaged in any way: 1 is loaded, and 2 is refused when it is asked for."""
    settled(place, 1, 2)
    for how in damaged_in_turn(place, 2, rounds, seed):
        try:
            assert same(load(place.url), whole(1, 2)), how
        except CheckpointError as error:
            raise AssertionError(f"{how}: version 1 is there, and {error}") from error
        with pytest.raises(CheckpointError):
            load(place.url, 2)
    assert same(load(place.url), whole(2, 2))


def test_damaged_files_are_passed_over(place: Place) -> None:
    damage_campaign(place, 6, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
def test_damaged_files_are_passed_over_at_length(place: Place, seed: int) -> None:
    damage_campaign(place, 30, seed)


@pytest.mark.parametrize(
    "what", ["half", *(pytest.param(w, marks=pytest.mark.slow) for w in ("file", "record"))]
)
def test_files_of_two_versions_are_no_version(place: Place, what: str) -> None:
    """Every byte is undamaged, but from another save."""
    settled(place, 1, 2)
    for disk in place.disks:
        for name in [
            n
            for d, n in files(place, 2)
            if d is disk and n.endswith(SUFFIX if what == "record" else ".pt")
        ]:
            old, new = disk.read(name.replace("0002.", "0001.")), disk.read(name)
            disk.write(name, new[: len(new) // 2] + old[len(new) // 2 :] if what == "half" else old)
    place.restart()
    assert same(load(place.url), whole(1, 2))


# --- storage that fails ---------------------------------------------------------------------------


def attempt(ranks: Ranks, version: int) -> bool:
    """Save; whether it returned, and not with an error. Either way it ends soon."""
    begin = time.monotonic()
    try:
        ranks.save(version)
        return True
    except CheckpointError:
        return False
    finally:
        assert time.monotonic() - begin < SOON_S, "it holds the training up"


def check(place: Place, ranks: Ranks, returned: bool) -> None:
    """After an attempt at version 2 that met trouble, which is over now."""
    found = load(place.url)
    assert same(found, whole(found["step"], 2)) and found["step"] in (1, 2), (
        "parts of two versions, or of none"
    )
    assert found["step"] == 2 or not returned, "acknowledged and gone"
    begin = time.monotonic()
    ranks.save(3)
    assert time.monotonic() - begin < SOON_S, "the failed save holds up the next one"
    assert same(load(place.url), whole(3, 2))


def disk_campaign(folder: Path, cases: list[tuple[str, int, int, bool]]) -> int:
    """Each system call of a save fails, once or from then on; returns how many saves failed."""
    failed = 0
    for number, (name, nth, error, forever) in enumerate(cases):
        with (
            file_place(folder / str(number)) as place,
            training(place) as ranks,
            pytest.MonkeyPatch.context() as patch,
        ):
            ranks.save(1)
            with patch.context() as trouble:
                trouble.setattr(os, *in_place_of(name, nth, error, forever))
                returned = attempt(ranks, 2)
            failed += not returned
            check(place, ranks, returned)
    return failed


def test_a_folder_whose_disk_fails(tmp_path: Path) -> None:
    chance = random.Random(3)
    cases = [
        (name, nth, chance.choice(ERRORS), chance.random() < 0.7) for name, nth in ALL_CALLS[::4]
    ]
    cases += [("short", nth, errno.ENOSPC, True) for nth in (1, 3)]
    assert disk_campaign(tmp_path, cases) >= len(cases) // 2


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("forever", [False, True])
def test_a_folder_whose_disk_fails_at_every_call(tmp_path: Path, error: int, forever: bool) -> None:
    cases = [(name, nth, error, forever) for name, nth in ALL_CALLS]
    cases += [("short", nth, error, True) for nth in range(1, 6)]
    assert disk_campaign(tmp_path, cases) >= len(cases) // 2


TROUBLES = [
    "503 Slow Down",
    "500 Internal Server Error",
    "403 Access Denied",
    "late",
    "lost",
    "cut",
]


def troubled(nth: int, trouble: str, forever: bool) -> Callable[[str, str], str | None]:
    """The n-th request fails in this way, and all after it while the trouble lasts, or that one
    alone.
    """
    seen = 0

    def answer(method: str, path: str) -> str | None:
        nonlocal seen
        if trouble == "cut" and method not in ("GET", "HEAD"):
            return None  # it is about replies that have a body
        seen += 1
        return trouble if seen == nth or (forever and seen > nth) else None

    return answer


def bucket_campaign(folder: Path, cases: list[tuple[int, str, bool]]) -> int:
    """Each request of a save fails, once or from then on; returns how many saves failed."""
    failed = 0
    for case in cases:
        with s3_place(folder) as place, training(place) as ranks:
            assert (store := place.store) is not None
            ranks.save(1)
            store.trouble = troubled(*case)
            returned = attempt(ranks, 2)
            store.trouble = lambda method, path: None
            store.deliver()
            failed += not returned
            check(place, ranks, returned)
    return failed


def test_a_bucket_that_fails(tmp_path: Path) -> None:
    assert bucket_campaign(tmp_path, [(4, "lost", True), (9, "late", True)]) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("forever", [False, True])
def test_a_bucket_that_fails_at_every_request(tmp_path: Path, trouble: str, forever: bool) -> None:
    cases = [(nth, trouble, forever) for nth in range(1, 20)]
    assert bucket_campaign(tmp_path, cases) >= (1 if trouble == "cut" else 6)


@pytest.mark.parametrize("nodes", ["tcp", "tcp,tcp", "replicas"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_nodes_whose_disks_fail(
    tmp_path: Path, nodes: str, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is remote all the same.

    If the memory is lost then, the one before it is there.
    """
    with PLACES[nodes](tmp_path) as place:
        with training(place) as ranks:
            ranks.save(1)
            await_disks(place, 1)
            with monkeypatch.context() as trouble:
                trouble.setattr(
                    os,
                    "pwrite",
                    failing(os.pwrite, random.Random(error).randrange(1, 4), error, True),
                )
                assert attempt(ranks, 2)
                assert same(load(place.url), whole(2, 2))
                place.restart()
        with training(place) as ranks:
            check(place, ranks, False)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_fails_fails_the_save_of_all(place: Place, victim: int) -> None:
    """Whichever it is, before a byte of it is sent; and soon, as the next save."""
    with training(place) as ranks, pytest.MonkeyPatch.context() as patch:
        ranks.save(1)
        fill = dcp_tiers.TierWriter.fill

        def broken(self: Any, *words: Any) -> Any:
            if self is ranks._writers[victim]:
                raise CheckpointError("the disk of the swap is full")
            return fill(self, *words)

        with patch.context() as trouble:
            trouble.setattr(dcp_tiers.TierWriter, "fill", broken)
            assert not attempt(ranks, 2)
        check(place, ranks, False)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_whose_part_is_not_sent_fails_the_save(place: Place, victim: int) -> None:
    unsent_part(place, victim)


def unsent_part(place: Place, victim: int) -> None:
    """The connection of a rank breaks behind its back, while all the others wait for its part."""
    with training(place) as ranks, pytest.MonkeyPatch.context() as patch:
        ranks.save(1)
        run = dcp_tiers._Sending._run

        def broken(self: Any) -> None:
            if self.ticket.rank == victim:
                self.tier = Unwilling(self.tier)
            run(self)

        with patch.context() as trouble:
            trouble.setattr(dcp_tiers._Sending, "_run", broken)
            assert not attempt(ranks, 2)
        check(place, ranks, False)


@dataclass
class Unwilling:
    """A tier that takes nothing."""

    tier: Any

    def put(self, *_: Any) -> None:
        raise CheckpointError("the line is cut")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tier, name)


def test_an_older_generation_commits_nothing_any_more(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machines were thought lost, and live on."""
    monkeypatch.setenv("DEEPVM_EPOCH", "1")
    with training(place) as old:
        old.save(1)
        monkeypatch.setenv("DEEPVM_EPOCH", "2")
        assert same(load(place.url), whole(1, 2))
        assert not attempt(old, 2)
        assert same(load(place.url), whole(1, 2))
    with training(place) as new:
        new.save(3)
    assert same(load(place.url), whole(3, 2))


@pytest.mark.parametrize(("keep", "left"), [("", (2, 3)), ("0", (1, 2, 3)), ("1", (3,))])
def test_how_many_versions_a_folder_keeps(
    keep: str, left: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPVM_KEEP", keep)
    with file_place(tmp_path) as place:
        with training(place) as ranks:
            for version in (1, 2, 3):
                ranks.save(version)
        for version in (1, 2, 3):
            if version in left:
                assert same(load(place.url, version), whole(version, 2))
            else:
                with pytest.raises(CheckpointError, match="no checkpoint"):
                    load(place.url, version)


def test_a_version_that_nobody_can_read_now_is_no_reason_to_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one copy is damaged, and the node with the other one dies after it has been asked what it
    has.
    """
    with PLACES["replicas"](tmp_path) as place:
        settled(place, 1, 2)
        place.nodes[0].registry.complete("sharded")[2].image[5000] ^= 1
        versions = ReplicatedTier.versions

        def asked(self: ReplicatedTier, job: str) -> Any:
            found = versions(self, job)
            place.nodes[1].stop(lambda: True)
            return found

        monkeypatch.setattr(ReplicatedTier, "versions", asked)
        with pytest.raises(CheckpointError, match=r"refused|closed"):
            load(place.url)


# --- the campaigns find what is broken on purpose -------------------------------------------------


@pytest.mark.parametrize("name", in_ring_2(["file", "s3", "tcp"], "s3"))
def test_bytes_that_nobody_checks_are_seen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks_no_bytes(monkeypatch.setattr)
    with PLACES[name](tmp_path) as place, pytest.raises(AssertionError):
        damage_campaign(place, 4, 1)


def rank_0_does_without_the_others(patch: pytest.MonkeyPatch) -> None:
    """It commits what is there, in a folder, a bucket or a node."""

    def joined(self: Any, shard: Shard, names: Any) -> memoryview:
        shard.ready(shard.layout.size)
        return memoryview(bytearray(shard.image))

    commit = VersionRegistry.commit

    def hasty(self: VersionRegistry, reservation: Reservation) -> Any:
        reservation.version.committed |= {0, 1}
        return commit(self, reservation)

    accepts_what_is_missing(patch.setattr)
    patch.setattr(shared_file_write, "until", lambda *_: None)
    patch.setattr(shared_file_write, "_refused", lambda part: False)
    patch.setattr(checkpoint_store.CheckpointStore, "_joined", joined)
    patch.setattr(VersionRegistry, "commit", hasty)
    patch.setattr(version_registry, "seal_by_parts", sums_of_what_is_there)


@pytest.mark.parametrize(
    "name", ["file", pytest.param("s3", marks=pytest.mark.slow), "tcp", "replicas"]
)
def test_a_part_that_nobody_misses_is_seen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_0_does_without_the_others(monkeypatch)
    with PLACES[name](tmp_path) as place, pytest.raises((AssertionError, CheckpointError)):
        unsent_part(place, 1)


def saves_return_at_once(patch: pytest.MonkeyPatch) -> None:
    """With the metadata handed over, and nothing known of the version."""
    commit = dcp_tiers._Sending.commit

    def early(self: Any, record: bytes) -> None:
        self._reached = Level.REMOTE
        commit(self, record)

    patch.setattr(dcp_tiers._Sending, "commit", early)


def test_a_save_that_returns_too_early_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves_return_at_once(monkeypatch)
    with pytest.raises((AssertionError, CheckpointError)):
        disk_campaign(tmp_path, [("pwrite", 1, errno.ENOSPC, True)])


@pytest.mark.slow
def test_a_failed_save_that_holds_up_the_next_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcp_tiers, "_failure", lambda ticket: None)
    monkeypatch.setattr(
        dcp_tiers._Sending, "_fail", lambda self, error: setattr(self, "_error", error)
    )
    monkeypatch.setattr(checkpoint_store, "LIMIT_S", 40.0)
    monkeypatch.setattr(dcp_tiers._Sending, "_ready", lambda self, end: None)
    with s3_place(tmp_path) as place, pytest.raises(AssertionError, match="holds"):
        unsent_part(place, 1)
