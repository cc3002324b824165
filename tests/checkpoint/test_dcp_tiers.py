"""FSDP2 and tensor-parallel states in memory nodes and buckets, by DCP: resharded bit for bit, all
or nothing.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint import object_store  # noqa: E402
from support.checkpoint.images import plain_shard  # noqa: E402
from support.checkpoint.killing import SENDER  # noqa: E402
from support.checkpoint.memory_nodes import TOKEN, running, until  # noqa: E402
from support.checkpoint.train_sharded import differences  # noqa: E402
from torch.distributed import checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint import dcp as dcp_tiers  # noqa: E402
from deepvm.checkpoint.dcp import DeepVMReader, DeepVMWriter  # noqa: E402
from deepvm.checkpoint.files.export import export_safetensors  # noqa: E402
from deepvm.checkpoint.format.manifest import Level  # noqa: E402
from deepvm.checkpoint.node.server import Node  # noqa: E402
from deepvm.checkpoint.node.version_registry import VersionRegistry  # noqa: E402
from deepvm.checkpoint.node.versions import Reservation  # noqa: E402
from deepvm.errors import CheckpointError, DamagedError, RequestError  # noqa: E402


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    token = tmp_path / "secret"
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(token))
    monkeypatch.setenv("DEEPVM_JOB", "sharded")
    monkeypatch.setattr(dcp_tiers, "_OPEN_TIERS", dcp_tiers._OpenTiers())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with object_store.running() as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.url)
        yield f"s3://{object_store.BUCKET}/run"


@pytest.fixture
def node() -> Iterator[Node]:
    with running() as found:
        yield found


def url(node: Node) -> str:
    return str(node.url)  # type: ignore[attr-defined]


def state(seed: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(64, 33, generator=made),
        "empty": torch.empty(0, 5),
        "nested": {"step": seed, "x": ["a"]},
    }


def loaded(place: str, step: int | None = None, **options: Any) -> dict[str, Any]:
    found = state(0)
    dcp.load(
        found,
        checkpoint_id=None if step is None else str(step),
        storage_reader=DeepVMReader(place, **options),
    )
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return torch.equal(one["w"], other["w"]) and one["nested"] == other["nested"]


def test_each_save_is_a_version_that_is_loaded_verified(node: Node) -> None:
    for step in (10, 20):
        dcp.save(state(step), checkpoint_id=str(step), storage_writer=DeepVMWriter(url(node)))
        assert step in node.registry.complete("sharded")  # remote on return
    assert same(loaded(url(node)), state(20)) and same(loaded(url(node), 10), state(10))
    dcp.save(state(5), storage_writer=DeepVMWriter(url(node)))  # no number: the next one
    assert same(loaded(url(node), 21), state(5))


@pytest.mark.parametrize("place", ["/nowhere", "tcp://127.0.0.1:1", "s3://bucket/run"])
def test_whatever_the_place_they_are_what_they_are_called(place: str, node: Node) -> None:
    assert isinstance(DeepVMWriter(place), DeepVMWriter) and isinstance(
        DeepVMReader(place), DeepVMReader
    )


def test_they_can_be_copied_and_pickled() -> None:
    """DCP's own background process gets its writer as a pickle."""
    for place in ["/nowhere", "tcp://127.0.0.1:1"]:
        for kind in [DeepVMWriter, DeepVMReader]:
            made = kind(place)
            for other in (copy.copy(made), pickle.loads(pickle.dumps(made))):
                assert type(other) is type(made) and other.__dict__.keys() == made.__dict__.keys()


def test_a_checkpointer_at_the_same_place_is_told_of_the_name(tmp_path: Path) -> None:
    place = tmp_path.as_uri()
    dcp.save(state(1), checkpoint_id="1", storage_writer=DeepVMWriter(place))
    model = torch.nn.Linear(2, 2)
    trained = Checkpointer(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), tiers=[place]
    )
    with pytest.raises(
        CheckpointError, match="version 1 of sharded on .* DeepVMReader; .* DEEPVM_JOB"
    ):
        trained.restore_latest()
    trained.close()
    with pytest.raises(CheckpointError, match="holds no model: it was saved by DeepVMWriter"):
        export_safetensors(tmp_path / "sharded-000000000001.pt", tmp_path / "model.safetensors")


def test_saves_without_a_name_warn_at_a_node_once(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dcp.save(state(1), checkpoint_id="1", storage_writer=DeepVMWriter(url(node), job="named"))
    monkeypatch.setattr(dcp_tiers, "_OPEN_TIERS", dcp_tiers._OpenTiers())
    monkeypatch.delenv("DEEPVM_JOB")
    assert "no name" not in caplog.text
    for step in ("1", "2"):
        dcp.save(state(1), checkpoint_id=step, storage_writer=DeepVMWriter(url(node)))
    assert caplog.text.count("this training job was given no name") == 1


@pytest.mark.slow
def test_async_save_by_a_process_of_its_own(node: Node) -> None:
    script = """
    import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    from deepvm.checkpoint.dcp import DeepVMWriter
    if __name__ == "__main__":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
        dist.init_process_group("gloo")
        kind = AsyncCheckpointerType.PROCESS
        own = {"w": torch.ones(5)}
        dcp.async_save(own, storage_writer=DeepVMWriter(sys.argv[1]), async_checkpointer_type=kind).result(60)
        dist.destroy_process_group()
    """  # noqa: E501
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), url(node)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert 1 in node.registry.complete("sharded")


def test_a_subclass_writes_to_folders(tmp_path: Path) -> None:
    class Writer(DeepVMWriter):
        pass

    class Reader(DeepVMReader):
        pass

    for kind in (Writer, Reader):
        assert type(kind(tmp_path)) is kind
        with pytest.raises(RequestError, match=f"{kind.__name__} is a subclass"):
            kind("tcp://127.0.0.1:1")


def test_async_save_with_one_writer(node: Node) -> None:
    writer, own = DeepVMWriter(url(node)), state(1)
    for step in range(1, 4):
        future: Any = dcp.async_save(own, checkpoint_id=str(step), storage_writer=writer)
        getattr(future, "upload_completion", future).result(60)
        assert same(loaded(url(node), step), own)
        own["w"].add_(1)


def test_what_a_node_keeps_is_a_torch_file(tmp_path: Path) -> None:
    with running(persist=tmp_path / "disk") as node:
        dcp.save(state(3), checkpoint_id="3", storage_writer=DeepVMWriter(url(node)))
        path = tmp_path / "disk" / "sharded-000000000003.pt"
        assert until(path.with_name(f"{path.name}.json").exists)
    tree = torch.load(path, weights_only=True)
    assert len(tree["ranks"]) == 1 and tree["metadata"].dtype is torch.uint8
    with running(persist=tmp_path / "disk") as node:
        assert same(loaded(url(node)), state(3))


def test_in_a_bucket(bucket: str) -> None:
    for step in (1, 2):
        dcp.save(state(step), checkpoint_id=str(step), storage_writer=DeepVMWriter(bucket))
    assert same(loaded(bucket), state(2)) and same(loaded(bucket, 1), state(1))


def test_a_damaged_version_is_passed_over(node: Node) -> None:
    for step in (1, 2):
        dcp.save(state(step), checkpoint_id=str(step), storage_writer=DeepVMWriter(url(node)))
    image = node.registry.complete("sharded")[2].image
    for place in range(0, len(image), len(image) // 40):
        image[place] ^= 4
        assert same(loaded(url(node)), state(1))
        with pytest.raises((CheckpointException, CheckpointError, AssertionError)):
            loaded(url(node), 2)
        image[place] ^= 4
    assert same(loaded(url(node)), state(2))


def test_bits_flipped_after_the_version_was_verified_are_found_too(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcp.save(state(1), checkpoint_id="1", storage_writer=DeepVMWriter(url(node)))
    reader = DeepVMReader(url(node))
    metadata = reader.read_metadata()
    for place in metadata.storage_data.values():
        if place.length < 100:
            continue
        data = reader._data[0]  # type: ignore[attr-defined]
        data = data.clone()
        data[place.offset + 50] ^= 1
        reader._data = [data]  # type: ignore[attr-defined]
        with pytest.raises(DamagedError):
            reader._read(place.relative_path, place.offset, place.length, "item")


def plain(size: int) -> Any:
    return torch.zeros(size, dtype=torch.uint8)


FILE = "__{}_0123456789abcdef.distcp"
STRANGE: list[Any] = [
    [1, 2],
    {"ranks": [plain(9)]},
    {"ranks": [plain(9)], "metadata": plain(7)},
    {"ranks": [plain(9)], "metadata": torch.zeros(20)},
    {"ranks": [plain(9)], "metadata": plain(1).expand(2**40)},
    {"ranks": [plain(9)], "metadata": plain(90)[::2]},
    {"ranks": [plain(9)], "metadata": plain(90).view(9, 10)},
    {"ranks": [torch.zeros(9)], "metadata": plain(90)},
]


@pytest.mark.parametrize("tree", STRANGE, ids=range(len(STRANGE)))
def test_a_version_of_something_else_is_passed_over(tree: Any, node: Node) -> None:
    """It is whole, but nothing that a writer makes; memory beyond its bytes is never read."""
    dcp.save(state(1), checkpoint_id="1", storage_writer=DeepVMWriter(url(node)))
    data = io.BytesIO()
    torch.save(tree, data)
    (known,) = dcp_tiers._OPEN_TIERS._open.values()
    known[1].put(plain_shard(bytearray(data.getvalue()), 2, "sharded"), lambda level: None)
    assert same(loaded(url(node)), state(1))


@pytest.mark.parametrize(
    ("name", "offset", "length"), [("x", 0, 9), (FILE.format(9), 0, 9), (FILE.format(0), 2**70, 1)]
)
def test_items_that_are_nowhere(name: str, offset: int, length: int, node: Node) -> None:
    """Of no file, of a rank that there is not, beyond the end."""
    reader: Any = DeepVMReader(url(node))
    reader._data, reader._crcs = [plain(20)], {(name, offset, length): 0}
    with pytest.raises(DamagedError, match="item w"):
        reader._read(name, offset, length, "w")


def test_places_and_numbers_that_are_none(node: Node, tmp_path: Path) -> None:
    for kind in (DeepVMWriter, DeepVMReader):
        for bad in ("ftp://a", "tcp://a", "tcp://a:1,b:2?replicas=5"):
            with pytest.raises(RequestError):
                kind(bad)
        with pytest.raises(RequestError, match="checkpoint_id"):
            kind(url(node)).reset("latest")
    with pytest.raises(
        (CheckpointException, CheckpointError, AssertionError), match="no checkpoint"
    ):
        loaded(url(node))
    assert (
        type(DeepVMWriter(tmp_path)) is DeepVMWriter
        and type(DeepVMReader(tmp_path)) is DeepVMReader
    )


def test_a_node_that_dies_fails_the_save(node: Node) -> None:
    node.stop(lambda: True)
    with pytest.raises((CheckpointException, CheckpointError), match="memory node"):
        dcp.save(state(1), checkpoint_id="1", storage_writer=DeepVMWriter(url(node)))


def test_a_save_that_another_one_overtakes_ends(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another rank fails while it lays its items out: nobody commits, and the next save
    does not wait.
    """
    writer = DeepVMWriter(url(node))
    with monkeypatch.context() as patch:
        patch.setattr(
            dcp_tiers.TierWriter,
            "finish",
            lambda *_, **__: (_ for _ in ()).throw(CheckpointError("no")),
        )
        with pytest.raises((CheckpointException, CheckpointError)):
            dcp.save(state(1), checkpoint_id="1", storage_writer=writer)
    assert not node.registry.complete("sharded")
    dcp.save(state(2), checkpoint_id="2", storage_writer=writer)
    assert sorted(node.registry.complete("sharded")) == [2] and same(loaded(url(node)), state(2))


SCRIPT = textwrap.dedent("""
    import os, signal, sys, time, warnings
    import torch
    import torch._dynamo
    import torch.distributed as dist
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from deepvm.checkpoint.dcp import DeepVMReader, DeepVMWriter

    from deepvm.io import failpoints

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kind, place, world, meeting, begin, end, out, kill_at, victim = sys.argv[1:]
    world, begin, end, victim = map(int, (world, begin, end, victim))
    ranks = {}
    for rank in range(world):  # forked, because importing all this takes longer than the rest
        if not (pid := os.fork()):
            break
        ranks[rank] = pid
    else:
        if kill_at:
            os.waitpid(ranks[victim], 0)
            time.sleep(0.2)
            for other in set(ranks) - {victim}:
                os.kill(ranks[other], signal.SIGKILL)
            os._exit(0)
        os._exit(max(os.waitpid(pid, 0)[1] for pid in ranks.values()) != 0)
    if kill_at and rank == victim:
        failpoints._label, failpoints._left = kill_at.split(":")[0], int(kill_at.split(":")[1])
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)

    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(10, 14), torch.nn.ReLU(), torch.nn.Linear(14, 6), torch.nn.Linear(6, 3)
    )
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (world,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:  # tensor parallel within pairs, FSDP across them
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        if world > 2:
            fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def take():
        parts = get_state_dict(model, optimizer)
        return {"model": parts[0], "optimizer": parts[1], "step": begin}

    if begin:
        for p in model.parameters():  # the state dict of an optimizer that has not stepped is empty
            p.grad = torch.zeros_like(p)
        optimizer.step()
        state = take()
        state["step"] = 0
        dcp.load(state, storage_reader=DeepVMReader(place))
        begin = state["step"]
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def whole(tree):
        if isinstance(tree, dict):
            return {k: whole(v) for k, v in tree.items()}
        if isinstance(tree, (list, tuple)):
            return [whole(v) for v in tree]
        if hasattr(tree, "full_tensor"):
            return tree.full_tensor().clone()  # of a tensor that is replicated it is the memory of the rank itself
        return tree.clone() if isinstance(tree, torch.Tensor) else tree  # the next step changes it

    states = {begin: whole(take())}
    writer = DeepVMWriter(place)
    for step in range(begin, end):
        torch.manual_seed(step)  # the same batch on all ranks: sums of equals do not depend on their number
        optimizer.zero_grad()
        model(torch.randn(4, 10)).square().mean().backward()
        optimizer.step()
        begin = step + 1
        future = dcp.async_save(take(), checkpoint_id=str(step + 1), storage_writer=writer)
        getattr(future, "upload_completion", future).result(60)
        if not rank:
            print("saved", step + 1, flush=True)
        states[begin] = whole(take())
    if not rank:
        torch.save(states, out)
    dist.barrier()
    os._exit(0)  # threads of gloo outlive the group (torch 2.13), and may abort the interpreter
""")  # noqa: E501


def train(
    kind: str,
    place: str,
    world: int,
    steps: tuple[int, int],
    folder: Path,
    kill_at: str = "",
    victim: int = 0,
) -> tuple[Path, list[int]]:
    """A file of the states by step, and the versions whose save returned on rank 0, which with
    others may be killed.
    """
    out, meeting = (
        folder / f"{world}-{steps[0]}-{os.urandom(3).hex()}.pt",
        folder / f"meeting-{os.urandom(4).hex()}",
    )
    words = [
        kind,
        place,
        str(world),
        str(meeting),
        *map(str, steps),
        str(out),
        kill_at,
        str(victim),
    ]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=200
    )
    saved = [int(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("saved")]
    assert not run.returncode, run.stderr[-3000:]
    return out, saved


def reshard(kind: str, place: str, folder: Path, worlds: tuple[int, ...]) -> None:
    """Train some steps in each world.

    Each begins with the very state with which the last one ended.
    """
    last: Any = None
    for number, world in enumerate(worlds):
        out, saved = train(kind, place, world, (2 * number, 2 * number + 2), folder)
        assert saved == [2 * number + 1, 2 * number + 2]
        states = torch.load(out, weights_only=False)
        if last is not None:
            assert not differences(states[2 * number], last)
        last = states[2 * number + 2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp", "tensor"])
def test_resharding_4_2_4_by_a_node(kind: str, node: Node, tmp_path: Path) -> None:
    reshard(kind, url(node), tmp_path, (4, 2, 4))


@pytest.mark.slow
def test_resharding_by_two_nodes_of_which_one_is_lost(tmp_path: Path) -> None:
    with running() as one, running() as two:
        place = f"{url(one)},{url(two).partition('://')[2]}?replicas=2"
        reshard("fsdp", place, tmp_path, (2, 2))
        one.stop(lambda: True)
        out, _ = train("fsdp", place, 2, (4, 4), tmp_path)
        assert torch.load(out, weights_only=False).keys() == {4}


@pytest.mark.slow
def test_resharding_by_a_bucket(bucket: str, tmp_path: Path) -> None:
    reshard("fsdp", bucket, tmp_path, (4, 2, 4))


KILLS = [*SENDER, "dcp.tier.before-commit", "dcp.tier.after-commit"]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """The state after each step of a run that nobody kills."""
    folder = tmp_path_factory.mktemp("truth")
    with pytest.MonkeyPatch.context() as patch, running() as node:
        (folder / "secret").write_bytes(TOKEN)
        (folder / "secret").chmod(0o600)
        patch.setenv("DEEPVM_TOKEN_FILE", str(folder / "secret"))
        out, _ = train("fsdp", url(node), 2, (0, 5), folder)
        return dict(torch.load(out, weights_only=False))


def kill(
    place: str, label: str, victim: int, folder: Path, truth: dict[int, Any], world: int = 2
) -> None:
    """Kill a rank in its third save, or about then.

    The next run goes on from what had returned, or newer.
    """
    passes = 8 if label == "sender.mid-chunk" else 3
    _, saved = train("fsdp", place, 2, (0, 5), folder, f"{label}:{passes}", victim)
    assert 1 <= len(saved) < 5
    out, _ = train("fsdp", place, world, (99, 5), folder)
    states = torch.load(out, weights_only=False)
    assert min(states) >= max(saved)
    assert not differences(states[min(states)], truth[min(states)])
    if world == 2:
        assert not differences(states[5], truth[5])


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("label", KILLS)
def test_ranks_that_are_killed(
    label: str, victim: int, node: Node, tmp_path: Path, truth: dict[int, Any]
) -> None:
    if label.startswith("dcp.tier") and victim:
        return  # rank 0 alone commits
    kill(url(node), label, victim, tmp_path, truth)


@pytest.mark.slow
def test_a_killed_run_goes_on_with_more_ranks(
    node: Node, tmp_path: Path, truth: dict[int, Any]
) -> None:
    kill(url(node), "sender.before-commit", 1, tmp_path, truth, world=4)


def acknowledges_at_once(patch: pytest.MonkeyPatch) -> None:
    """The save returns when the metadata is handed over, not when the version is there."""
    commit = dcp_tiers._Sending.commit

    def early(self: Any, record: bytes) -> None:
        self._reached = Level.REMOTE
        commit(self, record)

    patch.setattr(dcp_tiers._Sending, "commit", early)


def test_a_save_that_returns_too_early_is_seen(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node commits slowly: without the wait the version is missing when save returns."""
    commit = VersionRegistry.commit

    def late(self: VersionRegistry, reservation: Reservation) -> Any:
        time.sleep(0.2)
        return commit(self, reservation)

    monkeypatch.setattr(VersionRegistry, "commit", late)
    dcp.save(state(1), checkpoint_id="1", storage_writer=DeepVMWriter(url(node)))
    assert 1 in node.registry.complete("sharded")
    acknowledges_at_once(monkeypatch)
    dcp.save(state(2), checkpoint_id="2", storage_writer=DeepVMWriter(url(node)))
    assert 2 not in node.registry.complete("sharded")


def test_plans_that_a_planner_keeps_are_refused(tmp_path: Path) -> None:
    """Torch gives the plan of the first save to all of them: a later one would replace the first
    version.
    """
    place = f"file://{tmp_path}"
    planner = dcp.DefaultSavePlanner
    dcp.save(
        state(1),
        checkpoint_id="1",
        storage_writer=DeepVMWriter(place),
        planner=planner(enable_plan_caching=True),
    )
    with pytest.raises(CheckpointException) as caught:
        dcp.save(
            state(2),
            checkpoint_id="2",
            storage_writer=DeepVMWriter(place),
            planner=planner(enable_plan_caching=True),
        )
    assert "enable_plan_caching" in str(caught.value.failures[0][0])
    assert same(loaded(place), state(1))


def test_a_save_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No training ends because a disk is slow."""
    with running(memory=3 * 2**20, persist=tmp_path.as_uri()) as node:
        write = node.store.write

        def slow(*args: Any, **options: Any) -> Any:
            time.sleep(0.5)
            return write(*args, **options)

        monkeypatch.setattr(node.store, "write", slow)
        writer = DeepVMWriter(url(node))
        for step in range(1, 6):
            dcp.save(
                {"a": torch.full((2**18,), float(step))},
                checkpoint_id=str(step),
                storage_writer=writer,
            )
        found = {"a": torch.zeros(2**18)}
        dcp.load(found, storage_reader=DeepVMReader(url(node)))
        assert found["a"].unique().tolist() == [5.0]


@pytest.mark.parametrize("step", ["-1", "x", "9" * 5000])
def test_a_checkpoint_id_that_is_no_number(tmp_path: Path, step: str) -> None:
    with pytest.raises(RequestError, match="checkpoint_id"):
        DeepVMWriter(f"file://{tmp_path}").reset(step)
