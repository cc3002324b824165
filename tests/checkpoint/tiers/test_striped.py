"""Several memory nodes share each version: parts that are files of their own, joined bit by bit, or
not at all.
"""

from __future__ import annotations

import signal
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support.checkpoint.images import noise, plain_shard, zip_shard  # noqa: E402
from support.checkpoint.memory_nodes import (  # noqa: E402
    MIB,
    TOKEN,
    Acks,
    Process,
    finished,
    make_image,
    make_layout,
    running,
    until,
)

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.files.commit_record import verify  # noqa: E402
from deepvm.checkpoint.files.file_names import part_job, whole_job  # noqa: E402
from deepvm.checkpoint.files.stripe import (  # noqa: E402
    belong_together,
    join,
    mark_of,
    plan_part,
    read_part,
    read_part_file,
)
from deepvm.checkpoint.files.version_dir import VersionFolder  # noqa: E402
from deepvm.checkpoint.format.layout import Layout, Segment  # noqa: E402
from deepvm.checkpoint.format.manifest import (  # noqa: E402
    CommitRecord,  # noqa: E402
    Level,
    Shard,
)
from deepvm.checkpoint.node import flusher  # noqa: E402
from deepvm.checkpoint.node.server import Node  # noqa: E402
from deepvm.checkpoint.node.version_registry import VersionRegistry  # noqa: E402
from deepvm.checkpoint.node.versions import Reservation  # noqa: E402
from deepvm.checkpoint.tiers import striped as split_module  # noqa: E402
from deepvm.checkpoint.tiers.registry import open_tier  # noqa: E402
from deepvm.checkpoint.tiers.striped import StripedTier  # noqa: E402
from deepvm.checkpoint.tiers.tcp import CommitBarrier, TcpTier  # noqa: E402
from deepvm.errors import CheckpointError, DamagedError, RequestError, TierBusyError  # noqa: E402


@contextmanager
def nodes(
    *folders: Path | None, memory: int = 64 * MIB, **settings: object
) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running(memory, folder, **settings)) for folder in folders]


@contextmanager
def split(*places: object, session: str = "s1", **options: object) -> Iterator[StripedTier]:
    urls = [p if isinstance(p, str) else p.url for p in places]  # type: ignore[attr-defined]
    tier = StripedTier([TcpTier(url, session, TOKEN, **options) for url in urls])  # type: ignore[arg-type]
    yield tier
    tier.close()


def put(tier: StripedTier, version: int, data: bytearray) -> Acks:
    acks = Acks()
    tier.put(plain_shard(data, version), acks)
    return acks


def newest(tier: StripedTier, folder: Path) -> tuple[int, bytes]:
    manifest = tier.versions("job")[0]
    return manifest.version, tier.fetch(manifest, folder).read_bytes()


@pytest.mark.parametrize("shared", [False, True], ids=["a folder each", "one folder"])
def test_parts_are_torch_files_and_outlive_the_nodes(tmp_path: Path, shared: bool) -> None:
    folders = [tmp_path / "kept"] * 3 if shared else [tmp_path / f"kept-{n}" for n in range(3)]
    wanted = zip_shard(7, (100, 700_000, 1_000_000))
    with nodes(*folders, shared=shared) as three, split(*three) as tier:
        acks = Acks()
        tier.put(zip_shard(7, (100, 700_000, 1_000_000)), acks)
        assert acks.wait(Level.DURABLE) and acks.levels == [Level.REMOTE, Level.DURABLE]
    finished_file = finished(wanted.image, wanted.layout)
    parts = []
    for number, folder in enumerate(folders, start=1):
        path = folder / f"job.part-{number}-of-3-000000000007.pt"
        verify(path)
        assert zipfile.ZipFile(path).testzip() is None
        tree = torch.load(path, weights_only=True)
        assert (tree["number"], tree["of"]) == (number, 3)
        parts.append(len(tree["part"]))
        for folder_file in folder.iterdir():
            assert not folder_file.name.startswith(".") or folder_file.suffix == ".lock"
    assert sum(parts) == wanted.layout.size and max(parts) - min(parts) <= 1
    with nodes(*folders, shared=shared) as three, split(*three, session="s2") as tier:
        assert newest(tier, tmp_path / "restored") == (7, finished_file)
        assert [p.name for p in (tmp_path / "restored").iterdir()] == ["job-000000000007.pt"]
    if shared:  # whoever is started again there has the part of the other one
        with (
            nodes(folders[0], folders[0], folders[0], shared=True) as three,
            split(*three[::-1]) as tier,
        ):
            assert newest(tier, tmp_path / "restored") == (7, finished_file)


def test_a_version_that_goes_while_versions_are_listed_keeps_no_training_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last run's versions are still being flushed, and old ones removed, when the next one
    looks for the newest.
    """
    files = {version: bytearray(noise(100_000, version)) for version in (1, 2)}
    with nodes(tmp_path / "a", tmp_path / "b") as two, split(*two) as tier:
        assert all(put(tier, version, data).wait(Level.DURABLE) for version, data in files.items())
    with nodes(tmp_path / "a", tmp_path / "b") as two, split(*two, session="s2") as tier:
        look = split_module._head

        def late(node: TcpTier, manifest: CommitRecord) -> object:
            assert two[0].store is not None
            two[0].store.delete(part_job("job", 1, 2), 1)
            return look(node, manifest)

        monkeypatch.setattr(split_module, "_head", late)
        assert newest(tier, tmp_path / "restored") == (2, bytes(files[2]))


def test_a_shared_folder_must_be_said_to_be_one(tmp_path: Path) -> None:
    for first, second in ((False, True), (True, False)):
        with (
            running(persist=tmp_path, shared=first) as node,
            pytest.raises(CheckpointError, match="--shared-folder"),
        ):
            Node(type(node.settings)(**{**vars(node.settings), "shared": second})).start()


def test_a_starting_node_leaves_alone_what_another_one_is_writing(tmp_path: Path) -> None:
    hidden = tmp_path / ".job-000000000001.pt.0123abcd.tmp"
    hidden.write_bytes(b"half")
    with nodes(tmp_path, shared=True):
        assert hidden.exists()
    with nodes(tmp_path):
        assert not hidden.exists()


@pytest.mark.parametrize("world", [2, 3])
def test_saved_by_several_ranks_and_restored_by_one(tmp_path: Path, world: int) -> None:
    layout = make_layout(3 * MIB + 17, world, seed=5)
    image = make_image(layout, 1)
    with nodes(tmp_path / "a", tmp_path / "b") as two, ExitStack() as stack:
        tiers = [stack.enter_context(split(*two)) for _ in range(world)]
        for version in (1, 2):
            acks = [Acks() for _ in range(world)]
            threads = [
                threading.Thread(
                    target=tiers[r].put, args=(Shard("job", version, r, layout, image), acks[r])
                )
                for r in range(world)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert all(a.wait(Level.DURABLE) for a in acks)
        with split(*two, session="s2") as reader:
            manifest, older = reader.versions("job")
            assert (manifest.version, manifest.world, manifest.size) == (2, world, layout.size)
            assert older.version == 1
            assert reader.fetch(manifest, tmp_path / "restored").read_bytes() == finished(
                image, layout
            )


def test_a_rank_alone_completes_nothing(tmp_path: Path) -> None:
    layout = make_layout(100_000, 2)
    with nodes(None, None) as two, split(*two) as tier:
        acks = Acks()
        tier.put(Shard("job", 1, 0, layout, make_image(layout, 1)), acks)
        assert not tier.settle(0.2) and acks.levels == [] and tier.versions("job") == ()


def test_when_one_has_no_room_the_others_keep_what_they_have(tmp_path: Path) -> None:
    with nodes(None, None, memory=4 * MIB) as two, split(*two) as tier:
        data = {v: noise(3 * MIB, v) for v in range(1, 9)}  # a node has room for two parts
        for version in (1, 2):
            assert put(tier, version, data[version]).wait(Level.REMOTE)
        registry = two[1].registry
        kept = [registry.jobs["job.part-2-of-2"].complete[v] for v in (1, 2)]
        for each in kept:
            each.pins += 1  # whatever the reason: its slots are in use
        received = two[0].metrics()["counts"]["received_bytes"]
        for version in range(3, 7):
            with pytest.raises(TierBusyError):
                put(tier, version, data[version])
            # Nothing is sent in vain
            assert two[0].metrics()["counts"]["received_bytes"] == received
            assert newest(tier, tmp_path / "restored") == (2, bytes(data[2]))
        for each in kept:
            registry.unpin(each)
        assert put(tier, 7, data[7]).wait(Level.REMOTE)
        assert newest(tier, tmp_path / "restored") == (7, bytes(data[7]))


def test_what_is_durable_everywhere_stays_until_something_newer_is(tmp_path: Path) -> None:
    """One node's disk hangs while the other's goes on, far past what it would keep.

    Then both lose their memory.
    """
    folders = tmp_path / "a", tmp_path / "b"
    with nodes(*folders, memory=64 * MIB) as two, split(*two) as tier:
        assert put(tier, 1, noise(MIB, 1)).wait(Level.DURABLE)

        def hang(*_: object) -> None:
            raise CheckpointError("the disk hangs")

        write = two[1].store.write  # type: ignore[union-attr]
        two[1].store.write = hang  # type: ignore[union-attr,method-assign]
        later = [put(tier, version, noise(MIB, version)) for version in range(2, 7)]
        assert all(acks.wait(Level.REMOTE) for acks in later)
        on_disk = VersionFolder(folders[0])
        assert until(lambda: on_disk.versions("job.part-1-of-2")[0].version == 6)
        assert not any(Level.DURABLE in acks.levels for acks in later)
        # As they would be after a crash: what is in memory only does not count.
        with (
            nodes(*(link(folder) for folder in folders)) as others,
            split(*others, session="s2") as after,
        ):
            assert newest(after, tmp_path / "restored") == (1, bytes(noise(MIB, 1)))
        two[1].store.write = write  # type: ignore[union-attr,method-assign]
        assert later[-1].wait(Level.DURABLE)
        for version in (7, 8):
            assert put(tier, version, noise(MIB, version)).wait(Level.DURABLE)
        assert until(lambda: [m.version for m in on_disk.versions("job.part-1-of-2")] == [8, 7])


def test_a_part_goes_to_the_disk_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while it comes, however large it is: its first bytes come last.

    So the tests here need one way only.
    """
    monkeypatch.setattr(flusher, "LEAST_BYTES", 0)
    early: list[object] = []
    monkeypatch.setattr(flusher.PartialVersion, "__init__", lambda *words: early.append(words))
    with nodes(tmp_path / "a", tmp_path / "b") as two, split(*two) as tier:
        for version in range(1, 4):
            assert put(tier, version, noise(MIB, version)).wait(Level.DURABLE)
    assert not early


def test_the_same_version_again_while_one_disk_hangs(tmp_path: Path) -> None:
    """A run saves what it began from; one node's part is replaced on its disk, the other's is not.

    Memory is lost.
    """
    folders = tmp_path / "a", tmp_path / "b"
    data = noise(3 * MIB, 5)
    with nodes(*folders) as two, split(*two) as tier:
        assert put(tier, 5, data).wait(Level.DURABLE)
    with nodes(*folders) as two, split(*two, session="s2") as tier:
        hanging = True

        def write(*words: object, real: object = two[1].store.write) -> None:  # type: ignore[union-attr]
            if hanging:
                raise CheckpointError("the disk hangs")
            real(*words)  # type: ignore[operator]

        two[1].store.write = write  # type: ignore[union-attr,method-assign,assignment]
        again = put(tier, 5, data)
        assert again.wait(Level.REMOTE)
        assert until(lambda: two[0].flusher.times["flushed"] == 1)  # type: ignore[union-attr]
        assert Level.DURABLE not in again.levels
        with (
            nodes(*(link(folder) for folder in folders)) as others,
            split(*others, session="s3") as after,
        ):
            assert newest(after, tmp_path / "restored") == (5, bytes(data))
        with (
            nodes(folders[1].with_name("b-copy")) as (other,),
            split(two[0], other, session="s2") as after,
        ):
            # One node's new part, another's old one
            assert newest(after, tmp_path / "restored") == (5, bytes(data))
        hanging = False
        assert again.wait(Level.DURABLE)


@pytest.mark.parametrize("world", [1, 3])
def test_the_same_bytes_make_the_same_parts(world: int) -> None:
    layout = make_layout(5000, world, 1, records=1)

    def parts(seed: int, version: int) -> list[bytes]:
        image = make_image(layout, seed)
        made = []
        for plan in (plan_part(layout, number, 2) for number in (1, 2)):
            data = bytearray(plan.layout.size)
            for rank in range(world):
                whole = Shard("job", version, rank, layout, image)
                shard = plan.shard(whole, lambda whole=whole: mark_of(whole))  # type: ignore[misc]
                for offset, length in plan.layout.shards[rank]:
                    data[offset : offset + length] = shard.image[offset : offset + length]
            made.append(bytes(data))
        return made

    assert parts(1, 5) == parts(1, 5)
    mixed = [read_part(parts(1, 5)[0]), read_part(parts(2, 5)[1])]
    assert "not sent together" in belong_together(mixed)  # type: ignore[arg-type]


def test_all_but_the_mark_is_sent_while_the_rest_is_copied() -> None:
    size, copied = 16 * MIB, threading.Event()
    data = noise(size, 1)

    def ready(end: int) -> None:
        if end > size - MIB and not copied.wait(20):
            raise CheckpointError("the copy hangs")

    with nodes(None, None) as two, split(*two, wire_bytes=MIB) as tier:
        acks = Acks()
        thread = threading.Thread(
            target=tier.put, args=(replace(plain_shard(data), ready=ready), acks)
        )
        thread.start()
        try:
            received = lambda: two[0].metrics()["counts"]["received_bytes"]  # noqa: E731
            assert until(lambda: received() >= size // 2 - 2 * MIB)
            assert received() < size // 2 and not acks.levels
        finally:
            copied.set()
            thread.join(30)
        assert acks.wait(Level.REMOTE)
        (manifest,) = tier.versions("job")
        assert manifest.version == 1


def test_a_copy_that_fails() -> None:
    """The mark, which waits for all of it, fails as well: nothing hangs, and nothing is there."""

    def ready(end: int) -> None:
        if end > 2 * MIB:
            raise CheckpointError("the copy failed")

    with nodes(None, None) as two, split(*two) as tier:
        with pytest.raises(CheckpointError, match="the copy failed"):
            tier.put(replace(plain_shard(noise(4 * MIB)), ready=ready), Acks())
        assert tier.versions("job") == ()


def link(folder: Path) -> Path:
    """A copy of a folder as another machine would find it, taken while its node may be writing."""
    copy = folder.with_name(folder.name + "-copy")
    copy.mkdir()
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # a file in the making got its name
            (copy / path.name).write_bytes(path.read_bytes())
    return copy


def test_a_later_run_does_not_let_go_of_what_it_began_from(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    with nodes(*folders) as two, split(*two) as tier:
        assert put(tier, 5, noise(MIB, 5)).wait(Level.DURABLE)
    with nodes(*folders) as two, split(*two, session="s2") as tier:
        two[1].store.write = lambda *_: (_ for _ in ()).throw(CheckpointError("full"))  # type: ignore[union-attr]
        for version in (6, 7, 8):
            assert put(tier, version, noise(MIB, version)).wait(Level.REMOTE)
        assert until(lambda: VersionFolder(folders[0]).versions("job.part-1-of-2")[0].version == 8)
        assert VersionFolder(folders[0]).versions("job.part-1-of-2")[-1].version == 5


def test_parts_of_two_attempts_are_never_joined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Version 1 again, with other bytes.

    One node gets it, and its counterpart goes with the other node.
    """
    one, two = noise(MIB, 1), noise(MIB, 2)
    with nodes(None, None) as pair, split(*pair) as tier:
        assert put(tier, 1, one).wait(Level.REMOTE)
        half = plan_part(plain_shard(two).layout, 1, 2).shard(
            plain_shard(two), lambda: b"another mark 16b"
        )
        tier._nodes[0].put(half, Acks())
        assert tier.versions("job") == ()
        assert "not sent together" in caplog.text


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize("place", ["node.mid-chunk", "node.before-ack"])
def test_a_node_killed_in_mid_transfer_costs_that_version_alone(
    tmp_path: Path, victim: int, place: str
) -> None:
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    first, second = noise(3 * MIB, 1), noise(3 * MIB, 2)
    with Process(folders[0]) as a, Process(folders[1]) as b, split(a, b) as tier:
        assert put(tier, 1, first).wait(Level.DURABLE)
    kill_at = ["", ""]
    kill_at[victim] = place
    with Process(folders[0], kill_at=kill_at[0]) as a, Process(folders[1], kill_at=kill_at[1]) as b:
        with split(a, b, session="s2", limit_s=2.0) as tier, pytest.raises(CheckpointError):
            put(tier, 2, second)
        assert (a, b)[victim].process.wait(10) == -signal.SIGKILL
        # The other one has all of its part, and does not complete it alone
        if place == "node.mid-chunk":
            assert (a, b)[1 - victim].status()["counts"]["complete"] == 0  # type: ignore[index]
        with split(a, b, session="s3") as reader, pytest.raises(CheckpointError):
            reader.versions("job")
        with Process(folders[victim]) as again:
            places = [again if n == victim else (a, b)[n] for n in range(2)]
            with split(*places, session="s2") as tier:
                assert newest(tier, tmp_path / "restored") == (1, bytes(first))
                assert put(tier, 3, second).wait(Level.DURABLE)
                assert newest(tier, tmp_path / "restored") == (3, bytes(second))


def test_memory_that_is_lost_is_lost_and_the_disk_stays(tmp_path: Path) -> None:
    with nodes(tmp_path / "a", tmp_path / "b") as two, split(*two) as tier:
        assert put(tier, 1, noise(MIB, 1)).wait(Level.DURABLE)
        two[1].store.write = lambda *_: (_ for _ in ()).throw(CheckpointError("full"))  # type: ignore[union-attr]
        assert put(tier, 2, noise(MIB, 2)).wait(Level.REMOTE)
        assert newest(tier, tmp_path / "restored") == (2, bytes(noise(MIB, 2)))
        with nodes(link(tmp_path / "b")) as (again,), split(two[0], again, session="s1") as later:
            assert newest(later, tmp_path / "restored") == (1, bytes(noise(MIB, 1)))


def test_a_node_that_will_promise_no_more_does_not_speak_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a disk its last word is that the part is in its memory.

    The version is remote when all have said so.
    """
    told: list[object] = []
    with nodes(None, None) as both, split(*both) as tier:
        commit = VersionRegistry.commit

        def late(registry: VersionRegistry, reservation: Reservation) -> Any:
            if registry is both[1].registry:
                until(lambda: bool(told), 0.5)
            return commit(registry, reservation)

        monkeypatch.setattr(VersionRegistry, "commit", late)
        shard = replace(
            plain_shard(noise(2 * MIB), 1), lost=lambda reason: told.append(str(reason))
        )
        tier.put(shard, told.append)
        assert until(lambda: len(told) > 1)
    assert told[0] is Level.REMOTE and "memory only" in str(told[1])


def test_a_training_on_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(token))

    def train(steps: int, url: str) -> tuple[int, list[bytes]]:
        torch.manual_seed(0)
        model = torch.nn.Linear(300, 300)
        optimizer = torch.optim.Adam(model.parameters())
        with Checkpointer(model=model, optimizer=optimizer, tiers=[url], every=1) as saver:
            start = saver.restore_latest()
            for step in range(start, steps):
                optimizer.zero_grad()
                torch.manual_seed(step)
                model(torch.randn(4, 300)).square().mean().backward()
                optimizer.step()
            saver.save(block=True)
        return start, [p.detach().numpy().tobytes() for p in model.parameters()]

    with nodes(tmp_path / "a", tmp_path / "b") as two:
        url = ",".join([two[0].url, str(two[1].address)])  # type: ignore[attr-defined]
        assert train(3, url)[0] == 0
        crcs = [VersionFolder(tmp_path / n).found()[0].manifest.crcs for n in "ab"]  # type: ignore[union-attr]
        assert train(3, url)[0] == 3  # it saves what it began from, to the bit
        assert crcs == [VersionFolder(tmp_path / n).found()[0].manifest.crcs for n in "ab"]  # type: ignore[union-attr]
        start, cut = train(6, url)
        assert start == 3
    with nodes(tmp_path / "c", tmp_path / "d") as two:
        url = ",".join([two[0].url, str(two[1].address)])  # type: ignore[attr-defined]
        assert train(6, url) == (0, cut)


class TestNames:
    def test_urls(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        token = tmp_path / "token"
        token.write_bytes(TOKEN)
        monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(token))
        assert open_tier("tcps://a:1,b:2,[::1]:3", "s").url == "tcps://a:1,b:2,[::1]:3"
        assert open_tier("tcp://a:1", "s").url == "tcp://a:1"
        for wrong in ("tcp://a:1,", "tcp://a:1,a:1", "tcp://a:1,tcp://b:1", "tcp://a:1, b:2"):
            with pytest.raises(RequestError):
                open_tier(wrong, "s")

    def test_jobs(self) -> None:
        assert part_job("x" * 49, 1, 2) == "x" * 49 + ".part-1-of-2"
        assert len(part_job("x" * 49, 1, 2)) < 64
        assert whole_job("a.part-1-of-2.part-3-of-4") == ("a.part-1-of-2", 3, 4)
        assert whole_job("a.part-1") is None
        with pytest.raises(RequestError, match="at most 52 characters"):
            part_job("x" * 53, 1, 2)


@given(st.integers(1, 5000), st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6))
def test_any_file_any_ranks_any_parts(size: int, world: int, of: int, seed: int) -> None:
    """The ranks' bytes cover each part's file, say where it belongs, and sum to the whole."""
    layout = make_layout(max(size, 3 * world), world, seed, records=1)
    image = make_image(layout, seed)
    whole, parts = bytearray(), []
    for number in range(1, of + 1):
        plan = plan_part(layout, number, of)
        ranks = [
            plan.shard(Shard("job", 1, r, layout, image), lambda r=r: bytes([r] * 16))
            for r in range(world)
        ]
        data = bytearray(plan.layout.size)
        for rank, shard in enumerate(ranks):
            assert len(shard.image) == plan.layout.size
            for offset, length in plan.layout.shards[rank]:
                data[offset : offset + length] = shard.image[offset : offset + length]
        part = read_part(data)
        assert part is not None and part.marks == b"".join(bytes([r] * 16) for r in range(world))
        parts.append(part)
        whole += data[part.offset : part.offset + part.length]
    assert bytes(whole) == bytes(image) and belong_together(parts) == ""


def test_a_part_waits_for_what_it_reads_and_no_more() -> None:
    asked: list[int] = []
    layout = Layout(1000, ((Segment(0, 1000),),))
    shard = Shard("job", 1, 0, layout, memoryview(bytearray(1000)), asked.append)
    plan = plan_part(layout, 2, 4)
    part = plan.shard(shard, lambda: bytes(16))
    for end in (
        1,
        plan.part.offset,
        plan.part.offset + 1,
        plan.part.offset + 250,
        plan.layout.size,
    ):
        part.ready(end)
    assert asked == [251, 500, 500]


class TestJoin:
    def files(self, folder: Path, data: bytearray, of: int, mark: bytes = bytes(16)) -> list[Path]:
        made = []
        for number in range(1, of + 1):
            plan = plan_part(plain_shard(data).layout, number, of)
            made.append(folder / f"{number}-{mark[0]}")
            made[-1].write_bytes(
                plan.shard(plain_shard(data), lambda: mark).image[0 : plan.layout.size]
            )
        return made

    def test_what_does_not_belong_together(self, tmp_path: Path) -> None:
        good, other = (
            self.files(tmp_path, noise(5000), 3),
            self.files(tmp_path, noise(5000), 3, b"1" * 16),
        )
        join(good, tmp_path / "whole")
        assert (tmp_path / "whole").read_bytes() == noise(5000)
        for wrong in (
            [*good[:2], other[2]],
            good[:2],
            good[1:],
            good[::-1],
            [good[0], good[1], good[1]],
        ):
            with pytest.raises(CheckpointError):
                join(wrong, tmp_path / "wrong")
            assert not (tmp_path / "wrong").exists()

    def test_what_is_no_part(self, tmp_path: Path) -> None:
        (path,) = self.files(tmp_path, noise(100_000), 1)
        data = path.read_bytes()
        for wrong in (
            b"",
            b"x" * 100,
            bytes(10**6),
            data[:700],
            data.replace(b"part/1", b"part/2"),
        ):
            path.write_bytes(wrong)
            with pytest.raises(DamagedError):
                read_part_file(path)

    @given(st.data())
    def test_descriptions_that_lie(self, data: st.DataObject) -> None:
        """Another description is refused or consistent; never another error."""
        plan = plan_part(Layout(300, ((Segment(0, 300),),)), 1, 2)
        file = bytearray(plan.head)
        at = bytes(file).find(b'{"schema')
        for _ in range(data.draw(st.integers(1, 4))):
            file[at + data.draw(st.integers(32, 300))] = data.draw(
                st.sampled_from(b'0123456789-"{}:, ')
            )
        try:
            part = read_part(file)
        except DamagedError:
            return
        assert part is None or part.start + part.length <= part.whole.size == 300


class TestStep:
    def test_nobody_waits_for_one_who_failed(self) -> None:
        step = CommitBarrier(2, None, 30.0)
        seen: list[BaseException] = []

        def wait() -> None:
            try:
                step.wait("room")
            except CheckpointError as error:
                seen.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        step.fail(TierBusyError("full"))
        thread.join(10)
        assert [type(e) for e in seen] == [TierBusyError]

    def test_a_limit(self) -> None:
        with pytest.raises(CheckpointError, match="slow"):
            CommitBarrier(2, None, 0.05).wait("room")
