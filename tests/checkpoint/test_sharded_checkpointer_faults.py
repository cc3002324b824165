"""Damage, failing disks and broken code, met by a Checkpointer of a fully sharded model.

The invariant is that of test_sharded_faults.py: a save that returned is restored, bit for bit,
unless its bytes were damaged since; what is damaged or was never finished is passed over for the
version before it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("boto3")

from support.checkpoint.failing_disk import ERRORS, checks_no_bytes  # noqa: E402
from support.checkpoint.memory_nodes import TOKEN  # noqa: E402
from support.checkpoint.sharded_places import PLACES, Place, await_disks, damaged_in_turn  # noqa: E402
from support.checkpoint.train_sharded import Run, Training, differences, read  # noqa: E402

SOON_S = 15.0
CALLS = {"pwrite": 4, "fsync": 4, "replace": 3, "ftruncate": 1, "open": 6}
"""How often a rank makes them in a save of two ranks, or more."""
ALL_FAULTS = [
    (name, nth, rank)
    for name, most in CALLS.items()
    for nth in range(1, most + 1)
    for rank in (0, 1)
]
Start = Callable[..., tuple[Any, list[int], str]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    token = tmp_path / "secret"
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(token))
    count = iter(range(1000))

    def run(tiers: list[str], world: int, end: int, **options: Any) -> tuple[Any, list[int], str]:
        return Run(
            "fsdp", tiers, world, end, str(tmp_path / f"out-{next(count)}.pt"), **options
        ).start()

    return run


@pytest.fixture(
    params=[pytest.param(name, marks=() if name == "tcp" else pytest.mark.slow) for name in PLACES]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with PLACES[request.param](tmp_path) as made:
        yield made


# --- damage ---------------------------------------------------------------------------------------


def restored(url: str) -> dict[int, Any]:
    """What a process that has all of the model restores: the state by its version."""
    training = Training(Run("plain", [], 1, 0, ""), [url])
    try:
        return {training.saver.restore_latest(): training.take()}
    finally:
        training.saver.close()


def damage_campaign(place: Place, start: Start, rounds: int, seed: int) -> None:
    """Version 2 is damaged in any way: 1 is restored."""
    known, _, _ = start([place.url], 2, 2)
    await_disks(place, 1, 2)
    place.restart()
    for how in damaged_in_turn(place, 2, rounds, seed):
        found = restored(place.url)
        assert [*found] == [1] and not differences(found[1], known[1]), how
    found = restored(place.url)
    assert [*found] == [2] and not differences(found[2], known[2])


def test_damaged_files_are_passed_over(place: Place, start: Start) -> None:
    damage_campaign(place, start, 6, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
def test_damaged_files_are_passed_over_at_length(place: Place, start: Start, seed: int) -> None:
    damage_campaign(place, start, 30, seed)


@pytest.mark.slow
def test_ranks_pass_damaged_files_over(place: Place, start: Start) -> None:
    """All of them go on from the same version, in whichever way the newer one is damaged."""
    known, _, _ = start([place.url], 2, 2)
    await_disks(place, 1, 2)
    place.restart()
    for number, how in enumerate(damaged_in_turn(place, 2, 6, 5)):
        states, _, _ = start([place.url], (2, 4)[number % 2], 2)
        assert [*states] == [1, 2], how
        assert not differences(states, {1: known[1], 2: known[2]}), how


# --- a disk that fails ----------------------------------------------------------------------------


def disk_campaign(
    start: Start, folder: Path, faults: list[tuple[str, int, int, bool, int]], **options: Any
) -> int:
    """A system call of one rank fails, once or from then on, while version 2 is saved.

    Returns how many failed.
    """
    rows, _, _ = start([folder.as_uri()], 2, 0, faults=faults, **options)
    for row, fault in zip(rows, faults, strict=True):
        version, wrong = row.found
        assert version in (1, 2) and not wrong, (
            f"{fault}: parts of two versions, or of none: {version} {wrong[:2]}"
        )
        assert version == 2 or not any(row.returned), f"{fault}: acknowledged and gone"
        assert row.took_s < SOON_S, f"{fault}: it holds the training up"
        assert row.next == (3, []), f"{fault}: the failed save is in the way of the next"
    return sum(not all(row.returned) for row in rows)


@pytest.mark.slow
def test_a_folder_whose_disk_fails(start: Start, tmp_path: Path) -> None:
    chance = random.Random(3)
    faults = [
        (name, nth, chance.choice(ERRORS), False, rank) for name, nth, rank in ALL_FAULTS[::5]
    ]
    faults += [("short", 1, errno.ENOSPC, True, 1)]
    assert disk_campaign(start, tmp_path, faults) >= len(faults) // 2


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("forever", [False, True])
def test_a_folder_whose_disk_fails_at_every_call(
    start: Start, tmp_path: Path, error: int, forever: bool
) -> None:
    faults = [(name, nth, error, forever, rank) for name, nth, rank in ALL_FAULTS]
    faults += [("short", nth, error, True, rank) for nth in (1, 2) for rank in (0, 1)]
    assert disk_campaign(start, tmp_path, faults) >= len(faults) // 2


# --- the campaigns find what is broken on purpose -------------------------------------------------


def copied_slowly(start: Start, folder: Path, **options: Any) -> None:
    """Each version that is kept is the state of one step, though its copy takes longer than one."""
    states, _, _ = start([folder.as_uri()], 2, 8, copy_pause_s=0.012, keep=0, **options)
    kept = {int(file.stem.rpartition("-")[2]): read(file) for file in folder.glob("*.pt")}
    assert len(kept) > 2
    assert not [d for version, state in kept.items() for d in differences(state, states[version])]


def killed_before_a_commit(start: Start, folder: Path, *change: str) -> None:
    """All parts of version 4 are left.

    The next run, with other batches, has versions of its own parts alone.
    """
    url, fourth = folder.as_uri(), "sharded-000000000004.pt"
    start([url], 2, 12, victim=0, failpoint="shared-file.before-commit", passes=4, change=change)
    assert len([*folder.glob(f".{fourth}*")]) == 3, "the file, and what each rank reported"
    states, _, _ = start([url], 2, 6, seed=1, keep=0, change=(*change, "second_rank_comes_late"))
    assert min(states) == 3
    assert not differences(read(folder / fourth), states[4]), "version 4 has parts of two runs"


@pytest.mark.slow
def test_copies_are_those_of_one_step(start: Start, tmp_path: Path) -> None:
    copied_slowly(start, tmp_path / "kept")


@pytest.mark.slow
def test_parts_of_a_killed_run_are_in_no_later_version(start: Start, tmp_path: Path) -> None:
    killed_before_a_commit(start, tmp_path / "kept")


@pytest.mark.slow
def test_a_gate_that_does_not_wait_is_seen(start: Start, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="state"):
        copied_slowly(start, tmp_path / "kept", change=("no_gate",))


@pytest.mark.slow
def test_parts_at_the_wrong_place_are_seen(start: Start, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="parts of two versions"):
        disk_campaign(
            start,
            tmp_path,
            [("pwrite", 1, errno.EIO, True, 1)],
            change=("parts_at_the_wrong_place",),
        )


@pytest.mark.slow
def test_a_part_that_nobody_misses_is_seen(start: Start, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="parts of two versions"):
        disk_campaign(
            start,
            tmp_path,
            [("pwrite", 1, errno.EIO, False, 1)],
            change=("accepts_what_is_missing",),
        )


@pytest.mark.slow
def test_parts_of_a_killed_run_that_are_mixed_in_are_seen(start: Start, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="version 4"):
        killed_before_a_commit(start, tmp_path / "kept", "mixes_runs")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["file", "s3", "tcp"])
def test_bytes_that_nobody_checks_are_seen(
    name: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks_no_bytes(monkeypatch.setattr)
    with PLACES[name](tmp_path) as place, pytest.raises(AssertionError):
        damage_campaign(place, start, 4, 1)
