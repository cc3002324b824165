"""Fully sharded and tensor-parallel models in a Checkpointer: exact resume, other numbers of ranks,
kills, damage.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint import object_store  # noqa: E402
from support.checkpoint.killing import JOINT, SENDER, SNAPSHOT  # noqa: E402
from support.checkpoint.memory_nodes import TOKEN, running  # noqa: E402
from support.checkpoint.train_sharded import FIRST_SAFE, NotKilledError, Run, differences, read  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.errors import RequestError  # noqa: E402

Start = Callable[..., tuple[dict[int, Any], list[int], str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a training that goes on from what is in the tiers."""
    count = iter(range(1000))

    def run(
        kind: str, tiers: list[str], world: int, end: int, **options: Any
    ) -> tuple[dict[int, Any], list[int], str]:
        return Run(
            kind, tiers, world, end, str(tmp_path / f"out-{next(count)}.pt"), **options
        ).start()

    return run


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[str]]]:
    """Where versions go, by a name."""
    token = tmp_path / "secret"
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(token))
    with ExitStack() as stack:

        def node() -> str:
            return str(stack.enter_context(running()).url)  # type: ignore[attr-defined]

        def of(name: str) -> list[str]:
            if name == "folder":
                return [(tmp_path / "kept").as_uri()]
            if name == "bucket":
                store = stack.enter_context(object_store.running())
                monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.url)
                return [f"s3://{object_store.BUCKET}/run"]
            if name == "nodes":
                return [f"{node()},{node().partition('://')[2]}"]
            if name == "replicas":
                return [f"{node()},{node().partition('://')[2]}?replicas=2"]
            return [node(), *(of("folder") if name == "node and folder" else [])]

        yield of


def reshard(
    start: Start, tiers: list[str], *runs: tuple[str, int], **options: Any
) -> dict[int, Any]:
    """Train two steps in each world.

    Each begins with the very state with which the last one ended.
    """
    known: dict[int, Any] = {}
    for number, (kind, world) in enumerate(runs):
        states, saved, _ = start(kind, tiers, world, 2 * number + 2, **options)
        assert (
            list(states) == [2 * number, 2 * number + 1, 2 * number + 2] and 2 * number + 2 in saved
        )
        if known:
            assert not differences(states[2 * number], known[2 * number])
        known |= states
    return known


@pytest.mark.slow
def test_fsdp_on_4_2_and_4_ranks_and_the_whole_in_one_process(start: Start, tmp_path: Path) -> None:
    """And without resharding: the last version is damaged, and the one before it restored in a
    process of its own.
    """
    kept = tmp_path / "kept"
    known = reshard(start, [kept.as_uri()], ("fsdp", 4), ("fsdp", 2), ("fsdp", 4))
    tree = torch.load(kept / "sharded-000000000006.pt", weights_only=True)
    assert not differences(dict(tree["model"]), known[6]["model"])  # whole, for plain torch.load
    with (kept / "sharded-000000000006.pt").open("r+b") as file:
        file.seek(-20_000, 2)
        (byte,) = file.read(1)
        file.seek(-20_000, 2)
        file.write(bytes([byte ^ 1]))
    states, _, told = start("plain", [kept.as_uri()], 1, 6)
    assert list(states) == [5, 6] and "version 6" in told
    assert not differences(states[5], known[5]) and not differences(states[6], known[6])


def test_models_and_strategies_that_are_refused(tmp_path: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            old: Any = FullyShardedDataParallel(
                torch.nn.Linear(2, 2), device_id=torch.device("cpu")
            )
        with pytest.raises(RequestError, match="fully_shard"):
            Checkpointer(
                model=old, optimizer=torch.optim.SGD(old.parameters(), lr=0.1), tiers=tmp_path
            )
        new: Any = fully_shard(torch.nn.Linear(2, 2))
        with pytest.raises(RequestError, match="C or G with a sharded model"):
            optimizer = torch.optim.SGD(new.parameters(), lr=0.1)
            Checkpointer(model=new, optimizer=optimizer, tiers=tmp_path, strategy="layerwise")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp", "hybrid", "tensor"])
@pytest.mark.parametrize("place", ["node", "folder", "bucket"])
def test_resharding(
    kind: str, place: str, start: Start, places: Callable[[str], list[str]]
) -> None:
    few = "fsdp" if kind == "hybrid" else kind
    reshard(
        start, places(place), (kind, 4), (few, 2), (kind, 4), ("plain", 1), ("fsdp", 1), (kind, 4)
    )


@pytest.mark.slow
@pytest.mark.parametrize("place", ["nodes", "replicas", "node and folder"])
def test_resharding_by_several_places(
    place: str, start: Start, places: Callable[[str], list[str]]
) -> None:
    reshard(start, places(place), ("fsdp", 4), ("fsdp", 2), ("tensor", 4), ("fsdp", 3))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["C", "G"])
@pytest.mark.parametrize("kind", ["fsdp", "tensor"])
def test_copies_that_take_longer_than_a_step(
    kind: str, strategy: str, start: Start, tmp_path: Path
) -> None:
    """The next step waits for them, so that each version is the state of one step."""
    known, _, _ = start(kind, [(tmp_path / "known").as_uri()], 2, 12)
    kept = tmp_path / "kept"
    options: dict[str, Any] = {"strategy": strategy, "copy_pause_s": 0.012, "keep": 0}
    start(kind, [kept.as_uri()], 4, 6, **options)
    start(kind, [kept.as_uri()], 2, 12, **options)
    files = sorted(kept.glob("*.pt"))
    assert len(files) > 4
    for file in files:
        assert not differences(read(file), known[int(file.stem.rpartition("-")[2])])


@pytest.mark.slow
def test_copies_that_are_none_are_reported(
    start: Start, places: Callable[[str], list[str]]
) -> None:
    """Two experts under one name, for one.

    Of what is not sharded the neighbor's copy is compared, too.
    """
    _, _, told = start("tensor", places("folder"), 2, 2, drift=True)
    assert "ranks 0, 1 hold different values of state['model']['2.bias']" in told


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, Any]]:
    """The states of runs that nobody kills."""
    folder = tmp_path_factory.mktemp("truth")
    found = {}
    for kind, world in (("fsdp", 2), ("tensor", 4)):
        found[kind], _, _ = Run(
            kind, [(folder / kind).as_uri()], world, 12, str(folder / f"{kind}.pt")
        ).start()
    return found


def survive(
    start: Start, kind: str, tiers: list[str], worlds: tuple[int, int], known: Any, **kill: Any
) -> None:
    """A rank is killed.

    Another number of ranks goes on from what was acknowledged, or newer, and ends the same.

    ``start`` fails if nobody was killed.
    """
    _, saved, _ = start(kind, tiers, worlds[0], 12, **kill)
    states, _, _ = start(kind, tiers, worlds[1], 12)
    begin = min(states)
    assert max(saved, default=0) <= begin < 12
    # Later kills find a version that was safe: were it skipped, the run would begin at 0, and end
    # the same.
    assert saved or kill.get("kill_step", 12) <= FIRST_SAFE + 1
    assert not [d for step, state in states.items() for d in differences(state, known[kind][step])]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("label", [*SNAPSHOT, *SENDER, *JOINT])
def test_ranks_that_are_killed_while_they_save(
    label: str, victim: int, start: Start, places: Callable[[str], list[str]], truth: Any
) -> None:
    if label == "shared-file.before-commit" and victim:
        return  # rank 0 alone commits
    place = "folder" if label in JOINT else "node"
    passes = 90 if label == "sender.mid-chunk" else 4  # a rank sends some 25 pieces of a version
    survive(
        start, "fsdp", places(place), (2, 4), truth, victim=victim, failpoint=label, passes=passes
    )


@pytest.mark.slow
def test_a_kill_that_does_not_happen_shows_nothing(start: Start, tmp_path: Path) -> None:
    with pytest.raises(NotKilledError, match="rank 1 did not die"):
        start(
            "fsdp",
            [(tmp_path / "kept").as_uri()],
            2,
            2,
            victim=1,
            failpoint="no.such-point",
            passes=1,
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_sigkill_at_random_steps(
    seed: int, start: Start, places: Callable[[str], list[str]], truth: Any
) -> None:
    draw = random.Random(seed)
    kind = draw.choice(["fsdp", "fsdp", "tensor"])
    worlds = draw.choice([(2, 4), (4, 2), (4, 4), (2, 2)])
    survive(
        *(
            start,
            kind,
            places(draw.choice(["node", "folder", "bucket", "replicas"])),
            worlds,
            truth,
        ),
        victim=draw.randrange(worlds[0]),
        kill_step=draw.randrange(2, 13),
        kill_before=draw.choice(["forward", "backward", "step"]),
        copy_pause_s=draw.choice([0.0, 0.002]),
    )
