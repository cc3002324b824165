"""``gs://`` and ``az://``: whatever request fails, is lost, late or the last one, what was
acknowledged is there.

The stores are fsspec's file systems in memory and on disk. A writer meets trouble at every single
request of a save.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from support.checkpoint.cloud_stores import CHANGES, CloudStore
from support.checkpoint.images import joint_images, joint_layout, noise, plain_shard
from support.checkpoint.memory_nodes import make_image, make_layout, running
from support.checkpoint.memory_nodes import put as put_on_node
from support.checkpoint.memory_nodes import tier as node_tier

from deepvm.checkpoint.files.file_names import labeled_name, new_label
from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.checkpoint.format.manifest import SUFFIX, Level, NewVersion, Shard
from deepvm.checkpoint.tiers import checkpoint_store, cloud
from deepvm.checkpoint.tiers.cloud import CloudObjects, CloudTier
from deepvm.checkpoint.tiers.object_store import Ledger, LedgerFile, StaleError
from deepvm.checkpoint.tiers.registry import open_store, open_tier
from deepvm.cli.main import main
from deepvm.errors import CheckpointError, MissingExtraError, RequestError

BIG = 1000
_MOST_REQUESTS = 60


class Killed(BaseException):
    """The process is no more."""


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CloudStore:
    return CloudStore(None if request.param == "memory" else tmp_path)


def put(to: CloudTier, version: int, seed: int) -> None:
    to.put(plain_shard(noise(BIG, seed), version), lambda level: None)


def seeds(store: CloudStore, folder: Path) -> dict[int, int]:
    """The versions that a reader finds, each by the seed of its bytes.

    All of them can be fetched.
    """
    store.trouble = lambda request, path: None
    reader, found = store.tier(), {}
    for manifest in reader.versions("job"):
        data = reader.fetch(manifest, folder).read_bytes()
        found[manifest.version] = next(seed for seed in range(100) if noise(BIG, seed) == data)
    assert reader.damaged("job") == ()
    return found


def at_request(
    number: int, what: Any, requests: tuple[str, ...] = ()
) -> tuple[Callable[[str, str], Any], list[str]]:
    """Trouble at this request, of all or of these kinds; and what was asked.

    Who is killed asks for nothing more.
    """
    asked: list[str] = []

    def trouble(request: str, path: str) -> Any:
        if what is Killed and len(asked) >= number:
            return Killed()
        if not requests or request in requests:
            asked.append(request)
            if len(asked) == number:
                return what() if callable(what) else what
        return None

    return trouble, asked


def each_request(
    what: Any, kinds: tuple[str, ...] = ()
) -> Iterator[tuple[Callable[[str, str], Any], list[str]]]:
    """Trouble at the first request, at the second, ....

    Ends when there was no such request any more.
    """
    for number in range(1, _MOST_REQUESTS):
        trouble, asked = at_request(number, what, kinds)
        yield trouble, asked
        if len(asked) < number:
            assert number > 5, "a save has some requests"
            return
    raise AssertionError("so many requests for a save")


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("nothing", marks=pytest.mark.system),
        pytest.param("another version", marks=pytest.mark.slow),
        "the same version",
    ],
)
@pytest.mark.parametrize("what", ["fail", "lost", "late", Killed], ids=str)
def test_trouble_at_every_request_of_a_save(
    store: CloudStore, tmp_path: Path, before: str, what: Any
) -> None:
    version = 2 if before == "another version" else 1
    for number, (trouble, _) in enumerate(each_request(what)):
        own = CloudStore(tmp_path / str(number) if store.root.startswith(str(tmp_path)) else None)
        if before != "nothing":
            put(own.tier(keep=2), 1, 11)
        own.trouble = trouble
        acknowledged = False
        try:
            put(own.tier(keep=2), version, 12)
            acknowledged = True
        except (CheckpointError, Killed):
            pass
        own.trouble = lambda request, path: None
        own.deliver()
        found = seeds(own, tmp_path / "restored")
        if acknowledged:
            assert found.get(version) == 12
        first = {"nothing": {0, 12}, "another version": {11}, "the same version": {11, 12}}[before]
        assert found.get(1, 0) in first and found.keys() <= {1, 2}
        # The next run goes on as if nothing had been, and leaves nothing of the trouble.
        later = own.tier(keep=2)
        put(later, 3, 13)
        put(later, 4, 14)
        put(later, 5, 15)
        assert seeds(own, tmp_path / "restored") == {5: 15, 4: 14}
        if what != "late":
            left = [name for name in own.names() if not name.startswith(".")]
            assert len(left) == 4, left


@pytest.mark.parametrize("what", ["fail", "lost", "late", Killed], ids=str)
def test_trouble_at_every_request_of_a_removal(tmp_path: Path, what: Any) -> None:
    for trouble, _ in each_request(what):
        own = CloudStore()
        for version in (1, 2):
            put(own.tier(), version, 10 + version)
        own.trouble = trouble
        try:
            own.tier().delete("job", 1)
            gone = True
        except (CheckpointError, Killed):
            gone = False
        own.trouble = lambda request, path: None
        own.deliver()
        reader = own.tier()
        found = [m.version for m in reader.versions("job")]
        assert found == [2] if gone else found in ([2], [2, 1])
        assert [d.version for d in reader.damaged("job")] in ([], [1]), "never the other one"


def test_a_newer_generation_begins_before_every_request_of_an_older_one(tmp_path: Path) -> None:
    """What the newer one found is all that ever counts of the older one."""
    for number in range(1, _MOST_REQUESTS):
        own = CloudStore()
        older, newer = own.tier(keep=2), own.tier(keep=2)
        older.begin("job", 1)
        put(older, 1, 11)
        found: list[dict[int, int]] = []
        count = 0

        def trouble(request: str, path: str) -> None:
            nonlocal count
            count += 1
            if count == number:  # noqa: B023  called within the round
                own.trouble = lambda request, path: None  # noqa: B023
                newer.begin("job", 2)  # noqa: B023
                found.append(seeds(own, tmp_path / "r"))  # noqa: B023
                own.trouble = trouble  # noqa: B023

        own.trouble = trouble
        try:
            put(older, 2, 12)
            acknowledged = True
        except CheckpointError:
            acknowledged = False
        if count < number:
            assert acknowledged and number > 8
            return
        assert seeds(own, tmp_path / "r") == found[0]
        assert not acknowledged or found[0].get(2) == 12
        put(newer, 3, 13)
        assert seeds(own, tmp_path / "r") == {**({2: 12} if 2 in found[0] else {1: 11}), 3: 13}
    raise AssertionError("so many requests for a save")


def test_a_late_request_of_an_older_generation_never_counts(tmp_path: Path) -> None:
    for trouble, asked in each_request("late", CHANGES):
        own = CloudStore()
        older, newer = own.tier(keep=2), own.tier(keep=2)
        older.begin("job", 1)
        put(older, 1, 11)
        own.trouble = trouble
        with contextlib.suppress(CheckpointError):
            put(older, 2, 12)
        own.trouble = lambda request, path: None
        newer.begin("job", 2)
        found = seeds(own, tmp_path / "r")
        for version in (3, 4, 5):  # so that old states of the ledger are removed
            put(newer, version, 10 + version)
        own.deliver()
        assert seeds(own, tmp_path / "r") == {4: 14, 5: 15}, (asked, found)
        with pytest.raises(StaleError):
            put(older, 6, 16)
        assert seeds(own, tmp_path / "r") == {4: 14, 5: 15}


def test_a_stale_writer_of_a_removed_state_is_told(store: CloudStore) -> None:
    """The state that it makes is lower than the newest: it must not believe that it counts."""
    objects = store.tier()._objects
    assert [objects.put_if(".job.ledger", b"x", None if n == 0 else str(n)) for n in range(6)] == [
        True
    ] * 6
    assert [n for n in store.names() if "ledger" in n] == [
        ".job.ledger.000000000005",
        ".job.ledger.000000000006",
    ]
    assert objects.put_if(".job.ledger", b"late", "2") is False
    assert objects.put_if(".job.ledger", b"late", None) is False
    assert objects.get(".job.ledger") == (b"x", "6")


def test_two_who_change_a_ledger_at_once(store: CloudStore) -> None:
    tiers = [store.tier() for _ in range(4)]
    failed: list[Exception] = []

    def work(number: int) -> None:
        try:
            for step in range(8):
                put(tiers[number], 100 * number + step, number)
        except Exception as error:
            failed.append(error)

    for tier in tiers:
        tier._cleared.add("job")  # one writer at a time is assumed for leftovers
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert {m.version for m in store.tier().versions("job")} == {
        100 * n + s for n in range(4) for s in range(8)
    }


def test_a_store_without_exclusive_creation_is_refused(store: CloudStore) -> None:
    store.exclusive = False
    with pytest.raises(CheckpointError, match="replaces an object where it had to create one"):
        store.tier().prove()
    with pytest.raises(CheckpointError, match="ignores If-Match"):
        store.tier().begin("job", 1)
    assert store.names() == []


def test_without_its_ledger_all_versions_count(store: CloudStore, tmp_path: Path) -> None:
    for version in (1, 2):
        put(store.tier(), version, version)
    for name in store.names():
        if "ledger" in name:
            store.remove(name)
    assert seeds(store, tmp_path) == {1: 1, 2: 2}
    put(store.tier(), 3, 3)
    assert seeds(store, tmp_path) == {1: 1, 2: 2, 3: 3}


def test_a_ledger_that_is_damaged_is_said(store: CloudStore) -> None:
    put(store.tier(), 1, 1)
    *_, name = (n for n in store.names() if "ledger" in n)  # the newest state counts
    store.write(name, b"{}")
    with pytest.raises(CheckpointError, match=r"\.job\.ledger is damaged"):
        store.tier().versions("job")


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_version_that_goes_while_its_record_is_read(store: CloudStore, what: str) -> None:
    """As when rank 0 prunes, and another rank asks whether the newest one is committed."""
    for version in (1, 2):
        put(store.tier(), version, version)
    writer, reader = store.tier(), store.tier()
    kept = {m.version: m.crcs for m in reader.versions("job")}

    def trouble(request: str, path: str) -> None:
        if request == "cat_file" and path.endswith(SUFFIX) and "-000000000001." in path:
            store.trouble = lambda request, path: None
            writer.delete("job", 1)
            if what == "replaced":
                put(writer, 1, 7)

    store.trouble = trouble
    found = {m.version: m.crcs for m in reader.versions("job")}
    assert found.pop(2) == kept[2]
    assert not found if what == "removed" else found[1] != kept[1]
    assert reader.damaged("job") == ()


def test_a_store_that_lists_what_it_does_not_give(store: CloudStore) -> None:
    put(store.tier(), 1, 1)
    reader = store.tier()
    store.trouble = lambda request, path: FileNotFoundError(path) if path.endswith(SUFFIX) else None
    with pytest.raises(
        CheckpointError, match=r"job-0*1\..*json is listed, and was not there .* 5 times"
    ):
        reader.versions("job")


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_version_that_changes_while_it_is_asked_for(store: CloudStore, what: str) -> None:
    put(store.tier(), 1, 1)
    writer, reader = store.tier(), store.tier()

    def trouble(request: str, path: str) -> None:
        if request == "cat_file" and path.endswith(SUFFIX):
            store.trouble = lambda request, path: None
            writer.delete("job", 1) if what == "removed" else put(writer, 1, 2)

    store.trouble = trouble
    if what == "replaced":
        assert [reader.read("job", 1)[0].crcs] == [m.crcs for m in store.tier().versions("job")]
        return
    with pytest.raises(FileNotFoundError, match="version 1 of job"):
        reader.read("job", 1)


def test_an_upload_that_arrives_short_is_no_version(store: CloudStore) -> None:
    tier = store.tier()
    complete = store.complete

    def short(path: str, data: bytes) -> None:
        complete(path, data[: len(data) // 2] if path.endswith(".pt") else data)

    store.complete = short  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="has 500 bytes of 1000"):
        put(tier, 1, 1)
    store.complete = complete  # type: ignore[method-assign]
    assert [n for n in store.names() if n.endswith(".pt")] == [] and tier.versions("job") == ()


def test_reading_is_tried_again(
    store: CloudStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = noise(3 * CHUNK_BYTES + 5, 1)
    store.tier().put(plain_shard(data, 1), lambda level: None)
    reader = store.tier()
    (manifest,) = reader.versions("job")
    once: set[str] = set()

    def trouble(request: str, path: str) -> str | None:
        if request != "cat_file" or not path.endswith(".pt") or len(once) >= 2:
            return None
        once.add(f"{path}{len(once)}")
        return "fail"

    store.trouble = trouble
    assert reader.fetch(manifest, tmp_path).read_bytes() == data and len(once) == 2
    store.trouble = lambda request, path: (
        "fail" if request == "cat_file" and path.endswith(".pt") else None
    )
    with pytest.raises(CheckpointError, match="cannot read .*Trouble: 503"):
        reader.fetch(manifest, tmp_path / "other")


@pytest.mark.parametrize("world", [2, 3])
def test_several_ranks_join_their_parts(store: CloudStore, tmp_path: Path, world: int) -> None:
    layout = joint_layout(world, 30_000)
    tiers = [store.tier(session="one", keep=2) for _ in range(world)]
    for version in (1, 2, 3):
        whole, parts = joint_images(layout, version)
        levels: list[Level] = []
        threads = [
            threading.Thread(
                target=tiers[rank].put,
                args=(Shard("job", version, rank, layout, memoryview(parts[rank])), levels.append),
            )
            for rank in range(world)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert levels == [Level.DURABLE] * world
        manifest = store.tier().versions("job")[0]
        assert store.tier().fetch(manifest, tmp_path).read_bytes() == whole
    assert [m.version for m in store.tier().versions("job")] == [3, 2]
    assert store.tier()._objects.sizes(".parts/job/") == {}, (
        "parts are removed once they are joined"
    )


@pytest.fixture
def as_gs(monkeypatch: pytest.MonkeyPatch) -> CloudStore:
    """``gs://bucket/run`` by the registry, without Google's library."""
    store = CloudStore()
    monkeypatch.setattr(cloud, "_LIBRARIES", {"gs": "fsspec", "az": "no_such_library"})
    monkeypatch.setattr(fsspec, "filesystem", lambda scheme, **_: store)
    store.root = "bucket/run"
    store._fs.store.clear()
    return store


def test_a_node_persists_there_and_the_command_lists_it(
    as_gs: CloudStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = make_layout(50_000)
    with running(persist="gs://bucket/run") as node:
        sender = node_tier(node)
        assert put_on_node(sender, 4, layout, make_image(layout, 4)).wait(Level.DURABLE)
        sender.close()
    with running(persist="gs://bucket/run") as node:
        reader = node_tier(node, "s2")
        assert [m.version for m in reader.versions("job")] == [4]
        reader.close()
    for words, what in ((["ls"], "version"), (["verify"], "good")):
        with pytest.raises(SystemExit) as end:
            main(["ckpt", *words, "gs://bucket/run", "-o", "json"])
        assert end.value.code == 0
        assert what in json.dumps(json.loads(capsys.readouterr().out))
    with pytest.raises(SystemExit):
        main(["ckpt", "restore", "gs://bucket/run", "--to", str(tmp_path / "file")])
    assert (tmp_path / "file").stat().st_size == layout.size


def test_a_training_goes_on_there(as_gs: CloudStore) -> None:
    torch = pytest.importorskip("torch")
    from deepvm.checkpoint import Checkpointer

    def trained(steps: int) -> Any:
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.Adam(model.parameters())
        with Checkpointer(
            model=model, optimizer=optimizer, tiers="gs://bucket/run", job="mine", every=2
        ) as saver:
            for _ in range(saver.restore_latest(), steps):
                optimizer.zero_grad()
                model(torch.ones(1, 4)).square().sum().backward()
                optimizer.step()
            saver.save(block=True)
        return model.weight.detach().clone()

    trained(3)
    stopped_and_resumed = trained(6)
    as_gs._fs.store.clear()
    assert torch.equal(stopped_and_resumed, trained(6))


def test_urls() -> None:
    for url in ("gs://", "gs:///x", "gs://a?b", "az://account@container/x", "gs:bucket"):
        with pytest.raises(RequestError):
            open_tier(url, "s")


def test_a_library_that_is_missing_is_named(as_gs: CloudStore) -> None:
    with pytest.raises(
        MissingExtraError, match=r"tiers with az:// needs no_such_library.*'\.\[az\]'"
    ):
        open_tier("az://container/run", "s")
    with pytest.raises(MissingExtraError, match="persist with az://"):
        open_store("az://container/run")


def test_a_place_that_cannot_be_written_is_said_at_once(as_gs: CloudStore) -> None:
    as_gs.trouble = lambda request, path: PermissionError("403") if request == "pipe_file" else None
    told = pytest.raises(
        CheckpointError, match="gs://bucket/run: cannot write there: PermissionError: 403"
    )
    with told, running(persist="gs://bucket/run"):
        pass


def test_names_of_objects_are_those_of_generations(store: CloudStore) -> None:
    tier = store.tier()
    tier.begin("job", 7)
    put(tier, 3, 3)
    (name,) = (n for n in store.names() if n.endswith(".pt"))
    label = name.split(".")[1]
    assert label.startswith("g000000007-") and name == labeled_name("job", 3, label)
    assert name + SUFFIX in store.names()


def test_the_adapters_need_nothing_but_what_fsspec_has() -> None:
    """Each method that is called exists in fsspec's interface, so gcsfs and adlfs have it."""
    from fsspec import AbstractFileSystem

    called = set(re.findall(r"\bfs\.(\w+)\(", Path(cloud.__file__).read_text()))
    assert called == {
        "ls",
        "cat_file",
        "pipe_file",
        "open",
        "rm_file",
        "mv",
        "exists",
        "invalidate_cache",
    }
    for name in called:
        assert callable(getattr(AbstractFileSystem, name))


def test_ranks_that_start_together_prove_the_store_apart() -> None:
    """Each creates an object twice.

    Had all one name, the removal of one would look like a store without conditions.
    """
    for _ in range(5):
        store = CloudStore()
        store.trouble = lambda request, path: time.sleep(random.uniform(0.001, 0.01))
        errors: list[Exception] = []

        def begin(tier: CloudTier, errors: list[Exception] = errors) -> None:
            try:
                tier.begin("job", 1)
            except CheckpointError as error:
                errors.append(error)

        ranks = [threading.Thread(target=begin, args=(store.tier(session="x"),)) for _ in range(16)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        assert not errors, errors[0]


# --- the campaigns find what is broken on purpose -------------------------------------------------


def states_replace_each_other(patch: pytest.MonkeyPatch) -> None:
    """A state of the ledger is written whether or not another one was faster."""

    def put_if(self: CloudObjects, key: str, data: bytes, etag: str | None) -> bool:
        if etag is not None and not etag.isdigit():
            return False
        with self.errors(f"write {key}"):
            self.fs.pipe_file(self.path(f"{key}.{int(etag or 0) + 1:012d}"), data)
        return True

    patch.setattr(CloudObjects, "put_if", put_if)


def lower_states_are_believed(patch: pytest.MonkeyPatch) -> None:
    """Who creates a state where a lower one was removed is not told that it does not count."""
    states = CloudObjects._states
    created: list[int] = []

    def shown(self: CloudObjects, key: str) -> list[int]:
        found = states(self, key)
        return [number for number in found if not created or number <= created[-1]]

    put_if = CloudObjects.put_if

    def believing(self: CloudObjects, key: str, data: bytes, etag: str | None) -> bool:
        created.append(int(etag or 0) + 1 if etag is None or etag.isdigit() else 0)
        try:
            return put_if(self, key, data, etag)
        finally:
            created.clear()

    patch.setattr(CloudObjects, "_states", shown)
    patch.setattr(CloudObjects, "put_if", believing)


def the_ledger_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """An older generation goes on."""
    patch.setattr(LedgerFile, "_refuse", lambda self, found, epoch: None)


def the_entry_comes_first(patch: pytest.MonkeyPatch) -> None:
    """A version counts before its bytes are there."""
    write = CloudTier.write
    labels: list[str] = []

    def hasty(self: CloudTier, new: NewVersion) -> None:
        epoch = self._epochs.get(new.job)
        labels.append(new_label(epoch or 0))
        self.ledger(new.job).add(str(new.version), labels[-1], epoch)
        write(self, new)

    patch.setattr(checkpoint_store, "new_label", lambda epoch: labels[-1])
    patch.setattr(CloudTier, "write", hasty)


def an_entry_that_fails_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """Whether a version counts is not known, and it is said to."""
    add = LedgerFile.add

    def careless(self: LedgerFile, name: str, label: str, epoch: int | None) -> Ledger:
        try:
            return add(self, name, label, epoch)
        except CheckpointError:
            return Ledger()

    patch.setattr(LedgerFile, "add", careless)


def nothing_is_cleared(patch: pytest.MonkeyPatch) -> None:
    """What killed writers left stays."""
    patch.setattr(CloudTier, "_clear", lambda self, job, epoch: None)


def an_upload_is_not_measured(patch: pytest.MonkeyPatch) -> None:
    """Of what arrived the size is not compared, nor when it is listed."""
    sizes = CloudObjects.sizes
    patch.setattr(
        CloudObjects,
        "sizes",
        lambda self, prefix: {
            k: BIG if k.endswith(".pt") else n for k, n in sizes(self, prefix).items()
        },
    )


SEEN: dict[Callable[[pytest.MonkeyPatch], None], Callable[[Path], None]] = {
    states_replace_each_other: test_a_newer_generation_begins_before_every_request_of_an_older_one,
    lower_states_are_believed: lambda folder: test_a_stale_writer_of_a_removed_state_is_told(
        CloudStore()
    ),
    the_ledger_is_not_asked: test_a_newer_generation_begins_before_every_request_of_an_older_one,
    the_entry_comes_first: lambda folder: test_trouble_at_every_request_of_a_save(
        CloudStore(), folder, "another version", Killed
    ),
    an_entry_that_fails_is_acknowledged: lambda folder: test_trouble_at_every_request_of_a_save(
        CloudStore(), folder, "nothing", "fail"
    ),
    nothing_is_cleared: lambda folder: test_trouble_at_every_request_of_a_save(
        CloudStore(), folder, "nothing", Killed
    ),
    an_upload_is_not_measured: lambda folder: test_an_upload_that_arrives_short_is_no_version(
        CloudStore()
    ),
}


@pytest.mark.parametrize("change", SEEN, ids=lambda change: change.__name__)
def test_what_is_broken_is_seen(
    change: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SEEN[change](tmp_path / "as it is")
    change(monkeypatch)
    # Of bytes that nobody sent
    with pytest.raises((AssertionError, pytest.fail.Exception, StopIteration)):
        SEEN[change](tmp_path / "broken")


def test_without_the_fence_late_requests_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_ledger_is_not_asked(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_a_late_request_of_an_older_generation_never_counts(tmp_path)
