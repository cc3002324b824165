"""Several ranks: they share the bytes out, save the same version or none, and another number of
ranks can go on.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.places import TESTS

torch = pytest.importorskip("torch")

from support.checkpoint.memory_nodes import TOKEN, running, tier, until  # noqa: E402
from support.checkpoint.object_store import BUCKET  # noqa: E402
from support.checkpoint.object_store import running as bucket_running  # noqa: E402
from support.checkpoint.train_ranks import Sampler  # noqa: E402

from deepvm.checkpoint import Checkpointer, checkpointer, restore  # noqa: E402
from deepvm.checkpoint.format.layout import Layout, Segment  # noqa: E402
from deepvm.checkpoint.format.manifest import CommitRecord  # noqa: E402
from deepvm.checkpoint.restore import restore_newest  # noqa: E402
from deepvm.checkpoint.tiers.striped import StripedTier  # noqa: E402
from deepvm.checkpoint.tiers.tcp import TcpTier  # noqa: E402
from deepvm.checkpoint.training.ranks import (  # noqa: E402
    Ranks,
    SaveRequests,  # noqa: E402
    compare_replicas,
    shards,
)
from deepvm.checkpoint.training.state import TrainingState  # noqa: E402
from deepvm.core.preemption.savepolicy import SavePolicy  # noqa: E402
from deepvm.errors import CheckpointError, DamagedError  # noqa: E402

SCRIPT = TESTS / "support" / "checkpoint" / "train_ranks.py"


@given(st.integers(1, 5000), st.integers(1, 9), st.data())
def test_every_byte_has_one_sender_and_the_shares_are_even(
    size: int, world: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, size), max_size=8)))
    pairs = [
        (Segment(a, b - a), data.draw(st.integers(0, world - 1)))
        for a, b in zip(cuts, cuts[1:], strict=False)
    ]
    owned = pairs[::2]
    found = shards(size, world, owned)
    Layout(size, found)  # refuses gaps and overlaps
    for segment, rank in owned:
        assert any(
            s.offset <= segment.offset and segment.offset + segment.length <= s.offset + s.length
            for s in found[rank]
        )
    free = size - sum(s.length for s, _ in owned)
    for rank, segments in enumerate(found):
        own = sum(s.length for s, r in owned if r == rank)
        assert abs(sum(s.length for s in segments) - own - free / world) <= 1


@pytest.fixture
def node(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A memory node that persists; how to reach it."""
    token = tmp_path / "token"
    token.write_text("a token for tests")
    words = [
        "memory-node",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "64MiB",
        "--token-file",
        str(token),
    ]
    words += ["--persist", (tmp_path / "kept").as_uri()]
    command = [sys.executable, "-m", "deepvm.cli.main", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    address = process.stdout.readline().split()[-1]
    yield {"url": f"tcp://{address}", "token": str(token), "folder": str(tmp_path / "kept")}
    process.terminate()
    assert process.wait(30) == 0
    process.stdout.close()


def train(
    node: dict[str, str], world: int, until: int, job: str, *more: str, fails: bool = False
) -> list[Any]:
    out = Path(node["folder"]).parent / f"out-{job}-{until}"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={world}",
    ]
    command += [str(SCRIPT), node["url"], str(until), "3", str(out), *more]
    environ = {
        **os.environ,
        "DEEPVM_TOKEN_FILE": node["token"],
        "DEEPVM_JOB": job,
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert (ended.returncode != 0) == fails, ended.stderr[-3000:]
    return [] if fails else [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(world)]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_are_cut_and_go_on_bit_by_bit(node: dict[str, str], world: int) -> None:
    whole = train(node, world, 12, "whole")
    assert [r["start"] for r in whole] == [0] * world and len({r["parameters"] for r in whole}) == 1
    # Buffers that are not broadcast are each rank's own
    assert len({r["all"] for r in whole}) == world
    # Rank 1 dies in step 7: version 6 is the last of all ranks
    train(node, world, 8, "cut", "kill", "1", fails=True)
    again = train(node, world, 12, "cut")
    assert [r["start"] for r in again] == [6] * world
    for one, other in zip(whole, again, strict=True):
        assert {k: v for k, v in one.items() if k != "start"} == {
            k: v for k, v in other.items() if k != "start"
        }


@pytest.mark.slow
def test_two_ranks_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    place = {"url": folder.as_uri(), "token": "", "folder": str(folder)}
    first = train(place, 2, 4, "shared")
    (again,) = train(place, 1, 4, "shared")
    assert (again["start"], again["parameters"]) == (4, first[0]["parameters"])
    assert first[0]["disagreements"] == 0
    assert sorted(p.name for p in folder.glob("*.pt")) == [
        "shared-000000000003.pt",
        "shared-000000000004.pt",
    ]


@pytest.mark.slow
def test_two_ranks_share_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket_running() as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.url)
        place = {"url": f"s3://{BUCKET}/shared", "token": "", "folder": str(tmp_path / "unused")}
        whole = train(place, 2, 12, "whole")
        train(place, 2, 8, "cut", "kill", "1", fails=True)
        again = train(place, 2, 12, "cut")
        assert [r["start"] for r in again] == [6, 6]
        for one, other in zip(whole, again, strict=True):
            assert {k: v for k, v in one.items() if k != "start"} == {
                k: v for k, v in other.items() if k != "start"
            }


def test_the_sums_of_neighbors_are_compared(caplog: pytest.LogCaptureFixture) -> None:
    class ScriptedRanks(Ranks):
        def __init__(self, rows: list[list[int]]) -> None:
            self.rows = rows

        def gather(self, values: Any) -> list[list[int]]:
            return self.rows

    # Version, sum of the own part, sum of the next rank's part here.
    assert (
        compare_replicas(ScriptedRanks([[4, 11, 22], [4, 22, 33], [4, 33, 11]]), (4, 11, 22)) == 0
    )
    assert (
        compare_replicas(ScriptedRanks([[4, 11, 22], [4, 23, 33], [4, 33, 11]]), (4, 11, 22)) == 1
    )
    assert "ranks 0 and 1 hold different parameters" in caplog.text
    # Alone
    assert compare_replicas(ScriptedRanks([[0, 0, 0], [4, 23, 33], [0, 0, 0]]), (0, 0, 0)) == 0


class Meeting:
    """Two ranks in this process, each in a thread of its own.

    Whoever waits in vain is told after a while.
    """

    def __init__(self) -> None:
        self.barrier, self.rows = threading.Barrier(2), [None, None]

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.rows[rank] = value
        self.barrier.wait(20)
        found = [*self.rows]
        self.barrier.wait(20)
        return found


class Member(Ranks):
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.world, self.meeting = rank, 2, meeting

    def gather(self, values: Any) -> list[list[int]]:
        return self.meeting.exchange(self.rank, list(values))

    def gather_objects(self, value: Any) -> list[Any]:
        return self.meeting.exchange(self.rank, value)

    def minimum(self, values: Any) -> list[int]:
        return [int(min(column)) for column in zip(*self.gather(values), strict=True)]

    def broadcast(self, value: Any) -> Any:
        return self.meeting.exchange(self.rank, value)[0]


def together(url: str, work: Callable[[int, Checkpointer, Sampler], Any]) -> list[Any]:
    """What the work of each of two ranks returned; they save to one place."""
    meeting, found, lock = Meeting(), [None, None], threading.Lock()

    def one(rank: int) -> None:
        with lock:
            torch.manual_seed(0)
            model = torch.nn.Linear(8, 8)
        optimizer, sampler = torch.optim.SGD(model.parameters(), lr=0.1), Sampler(rank)
        with lock, pytest.MonkeyPatch.context() as patch:  # undone before the other rank patches
            patch.setattr(checkpointer, "Ranks", lambda: Member(meeting, rank))
            # The ID of the run
            patch.setattr(Member, "broadcast", lambda self, value: ("s", *value[1:]))
            patch.setattr(Member, "together", lambda self, work: work())
            saver = Checkpointer(
                model=model, optimizer=optimizer, extra={"sampler": sampler}, tiers=[url], job="job"
            )
        try:
            found[rank] = work(rank, saver, sampler)
        except BaseException as error:
            found[rank] = error
        finally:
            saver.close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.fixture(autouse=True)
def _machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank of :func:`together` is on a machine of its own."""
    monkeypatch.setattr(restore, "_machine", lambda: str(threading.get_ident()))


def step(saver: Checkpointer) -> None:
    optimizer = saver._state.optimizer
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_a_rank_whose_extra_cannot_be_saved_stops_neither_itself_nor_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for it; what torch would not load again is not written either.

    And later it can be saved again.
    """

    def work(rank: int, saver: Checkpointer, sampler: Sampler) -> list[bool]:
        good = sampler.state_dict
        lost = []
        for number in range(1, 5):
            bad = rank == 1 and number in (1, 3)  # with the first version there is no layout yet
            sampler.state_dict = (lambda: {"queue": object()}) if bad else good  # type: ignore[method-assign]
            step(saver)
            try:
                lost.append(saver.save().local_done.exception(30) is not None)
            except CheckpointError:
                lost.append(True)
        return lost

    assert together(tmp_path.as_uri(), work) == [[True, False, True, False]] * 2
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == [
        "job-000000000002.pt",
        "job-000000000004.pt",
    ]
    assert "version 3 is not saved: invalid value for ['extra']['sampler']['queue']" in caplog.text


def test_no_rank_saves_a_version_for_which_another_has_no_slot(tmp_path: Path) -> None:
    """Nor when the layout is made anew, while versions of the old one are still under way."""

    def work(rank: int, saver: Checkpointer, sampler: Sampler) -> bool:
        take = saver._pipeline.take
        if rank == 1:
            saver._pipeline.take = lambda timeout_s=0, **_: None  # type: ignore[method-assign]
        with pytest.raises(CheckpointError, match="version 0 was skipped"):
            saver.save()
        saver._pipeline.take = take  # type: ignore[method-assign]
        step(saver)
        second = saver.save()
        # What was taken for the first is given back; another may have been warmed meanwhile
        pipeline = saver._pipeline
        return second.local_done.result(30) == 1 and until(
            lambda: 1 <= len(pipeline._slots) == len(pipeline._free)
        )

    assert together(tmp_path.as_uri(), work) == [True, True]


def test_what_two_saves_of_a_number_hold_is_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank has sent its part of the second before another has begun with the first."""
    (tmp_path / "token").write_bytes(TOKEN)
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(tmp_path / "token"))
    sent = threading.Event()

    def work(rank: int, saver: Checkpointer, sampler: Sampler) -> list[bool]:
        (tier,) = saver._pipeline.tiers
        put, parameters = tier.put, [*saver._state.model.parameters()]

        def late(*given: Any) -> None:
            if rank:
                assert sent.wait(30)
            put(*given)
            if not rank and given[0].attempt == 2:
                sent.set()

        tier.put = late  # type: ignore[method-assign]
        handles = []
        for value in (1.0, 2.0):
            with torch.no_grad():
                saver.wait()
                for parameter in parameters:
                    parameter.fill_(value)
            handles.append(saver.save())
        return [handle.remote_done.exception(30) is None for handle in handles]

    with running() as node:
        assert together(node.url, work)[1] == [False, True]
        reader = tier(node)
        tree = torch.load(reader.fetch(reader.versions("job")[0], tmp_path), weights_only=True)
        assert {float(v) for value in tree["model"].values() for v in value.flatten()} == {2.0}
        reader.close()


@pytest.mark.parametrize("seen_by", ["all", "one rank"])
def test_all_ranks_raise_or_begin_anew_together(tmp_path: Path, seen_by: str) -> None:
    """Where all versions are damaged, or one rank finds them so: none may start at 0 while another
    gives up.
    """

    def save(rank: int, saver: Checkpointer, sampler: Sampler) -> int:
        step(saver)
        return saver.save().local_done.result(30)

    def restore(rank: int, saver: Checkpointer, sampler: Sampler, **options: bool) -> int:
        (tier,) = saver._pipeline.tiers
        if seen_by == "one rank" and rank:

            def damaged(*_: Any) -> Path:
                raise DamagedError("bytes 0 to 9 are damaged")

            tier.fetch = damaged  # type: ignore[method-assign]
        return saver.restore_latest(**options)

    assert together(tmp_path.as_uri(), save) == [1, 1]
    (file,) = tmp_path.glob("*.pt")
    if seen_by == "all":
        file.write_bytes(file.read_bytes()[:-1])
    for error in together(tmp_path.as_uri(), restore):
        assert isinstance(error, CheckpointError) and "all checkpoints of job are damaged" in str(
            error
        ), error
    assert file.exists()
    assert together(tmp_path.as_uri(), partial(restore, allow_fresh=True)) == [0, 0]
    assert sorted(p.name.split(".", 2)[2][-6:] for p in tmp_path.glob("job-*")) == [".aside"] * 2
    assert together(tmp_path.as_uri(), restore) == [0, 0]


def test_a_rank_that_cannot_have_a_version_says_so_to_the_others(tmp_path: Path) -> None:
    """Whatever its reason is: they all restore the version before."""

    def work(rank: int, saver: Checkpointer, sampler: Sampler) -> int:
        for _ in range(2):
            step(saver)
            saver.save(block=True)
        (tier,) = saver._pipeline.tiers
        fetch = tier.fetch

        def full(manifest: CommitRecord, folder: Path) -> Path:
            if rank and manifest.version == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return fetch(manifest, folder)

        tier.fetch = full  # type: ignore[method-assign]
        return saver.restore_latest()

    assert together(tmp_path.as_uri(), work) == [1, 1]


def test_ranks_of_one_machine_fetch_a_version_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "_machine", lambda: "here")
    fetched: list[int] = []

    def work(rank: int, saver: Checkpointer, sampler: Sampler) -> int:
        step(saver)
        saver.save(block=True)
        (tier,) = saver._pipeline.tiers
        fetch = tier.fetch

        def copy(manifest: CommitRecord, folder: Path) -> Path:
            """As from a node, to a folder that goes when the version is restored."""
            fetched.append(rank)
            return Path(shutil.copy(fetch(manifest, folder), folder / "copy.pt"))

        tier.fetch = copy  # type: ignore[method-assign]
        sampler.position += 5
        assert saver.restore_latest() == 1
        return sampler.position

    assert together(tmp_path.as_uri(), work) == [0, 1000] and fetched == [0]


@pytest.mark.parametrize("fails", ["extra", "file", "tier"])
def test_a_rank_that_cannot_load_a_version_does_not_raise_alone(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would train on, and hang in their first collective."""
    load = torch.load

    def work(rank: int, saver: Checkpointer, sampler: Sampler) -> int:
        step(saver)
        saver.save(block=True)

        def broken(*_: Any, **__: Any) -> Any:
            raise ValueError("broken here")

        if rank and fails == "extra":
            sampler.load_state_dict = broken  # type: ignore[method-assign]
        elif rank and fails == "tier":
            saver._pipeline.tiers[0].fetch = broken  # type: ignore[method-assign]
        elif rank:
            me = threading.get_ident()
            monkeypatch.setattr(
                torch,
                "load",
                lambda *a, **k: (broken if threading.get_ident() == me else load)(*a, **k),
            )
        return saver.restore_latest()

    first, second = together(tmp_path.as_uri(), work)
    assert type(first) is type(second) is CheckpointError and "broken here" in str(second)
    assert "another rank" in str(first)
    causes: list[BaseException | None] = [second]
    while causes[-1] is not None:
        causes.append(causes[-1].__cause__)
    assert isinstance(causes[-2], ValueError)


def test_an_error_of_the_first_rank_is_one_of_all() -> None:
    """Whatever it is: the others wait for its result."""
    meeting = Meeting()
    found: list[Any] = [None, None]

    def one(rank: int) -> None:
        try:
            Member(meeting, rank).by_first(lambda: 1 // 0)
        except CheckpointError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all("ZeroDivisionError" in str(error) for error in found), found


def test_a_policy_by_steps_is_asked_after_each_of_them(tmp_path: Path) -> None:
    """For any class: all ranks know its steps, so none waits until requests are shared."""

    class Thirds(SavePolicy):
        @property
        def fixed_steps(self) -> int:
            return 3

    def work(rank: int, saver: Checkpointer, sampler: Sampler) -> list[int]:
        saver._schedule = Thirds()
        for _ in range(10):
            step(saver)
            saver._snapshotter.finish()
            for handle in saver.handles:  # a slot for the next one
                handle.local_done.exception(30)
        return [handle.version for handle in saver.handles]

    assert together(tmp_path.as_uri(), work) == [[3, 6, 9]] * 2


def test_a_name_that_no_node_can_take_is_said_to_all_ranks() -> None:
    meeting = Meeting()
    nodes = StripedTier([TcpTier(f"tcp://127.0.0.1:{port}", "s", "a token") for port in (1, 2)])
    state = TrainingState(
        model := torch.nn.Linear(2, 2), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    found: list[Any] = [None, None]

    def one(rank: int) -> None:
        try:
            restore_newest(state, [nodes], "j" * 64, Member(meeting, rank))
        except CheckpointError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found[0] == found[1] and "at most" in found[0]


@pytest.mark.parametrize("world", [1, 2])
def test_a_wish_is_heard_wherever_the_training_is(world: int) -> None:
    """A signal, the notice of a preemption, arrives between any two lines."""

    class Alone(Ranks):
        def __init__(self) -> None:
            self.rank, self.world = 0, world

        def minimum(self, values: Any) -> list[int]:
            return list(values)

    lines = range(1, 30)
    for line in lines:
        requests, left = SaveRequests(Alone()), line
        requests.reset(-(10**9))

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal left
            if frame.f_code is SaveRequests.due.__code__ and event == "line":
                left -= 1
                if not left:
                    requests.ask()  # noqa: B023
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            heard = requests.due(1)
        finally:
            sys.settrace(before)
        requests._next = 0
        assert left > 0 or heard or requests.due(2), f"lost before line {line} of due()"


@pytest.mark.slow
def test_replicas_that_drift_apart_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFT", "1")
    folder = tmp_path / "shared"
    found = train({"url": folder.as_uri(), "token": "", "folder": str(folder)}, 2, 7, "drift")
    assert [r["disagreements"] for r in found] == [1, 1] and found[0]["parameters"] != found[1][
        "parameters"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(4, (2, 1)), (3, (5, 1, 2))])
def test_another_number_of_ranks_goes_on(
    node: dict[str, str], before: int, after: tuple[int, ...]
) -> None:
    first = train(node, before, 6, "elastic")
    for world in after:
        # Nothing left to train: what was restored is what is told
        found = train(node, world, 6, "elastic")
        assert {r["start"] for r in found} == {6} and {r["parameters"] for r in found} == {
            first[0]["parameters"]
        }
        assert {r["lr"] for r in found} == {first[0]["lr"]}
    versions = sorted(Path(node["folder"]).glob("elastic-*.pt"))
    tree = torch.load(versions[-1], weights_only=True)
    assert (
        set(tree) == {"model", "optimizer", "extra", "version", "fingerprint"}
        and tree["version"] == 6
    )
    further = train(node, after[0], 9, "elastic")
    assert [r["start"] for r in further] == [6] * after[0] and len(
        {r["parameters"] for r in further}
    ) == 1
    (alone,) = train(node, 1, 9, "elastic")
    assert (alone["start"], alone["parameters"]) == (9, further[0]["parameters"])


GIVES_WAY = """
import json, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from deepvm.checkpoint import Checkpointer
from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.tiers.base import Tier

out, left_s = Path(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()

class Slow(Tier):
    url, streams, begun, taken = "slow://here", True, [], []

    def put(self, shard, acknowledged):
        self.begun.append(shard.version)
        while shard.version == 2 and not (out / "open").exists():
            shard.ready(shard.layout.size)
            time.sleep(0.01)
        self.taken.append(shard.version)
        acknowledged(Level.DURABLE)

    def versions(self, job):
        return ()

    def fetch(self, manifest, folder):
        raise FileNotFoundError

tier, model = Slow(), torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
saver = Checkpointer(model=model, optimizer=optimizer, tiers=[tier])

def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.01)

step()
saver.save(block=True)  # what versions cost is known
step()
saver.save()
while tier.begun != [1, 2]:
    time.sleep(0.01)
dist.barrier()
if rank:  # the other one does not know of the deadline
    saver.request_save(deadline=time.time() + left_s)
for _ in range(100):
    step()
assert saver.handles[-1].version > 2
(out / "open").touch()
saver.close()
(out / f"taken.{rank}").write_text(json.dumps(tier.taken))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left_s", "kept"), [(600.0, [1, 2]), (0.0, [1])], ids=["both-fit", "one-fits"]
)
def test_with_several_ranks_too_what_is_being_sent_is_kept_if_both_fit(
    left_s: float, kept: list[int], tmp_path: Path
) -> None:
    """All ranks decide alike, although one alone knows how much time is left."""
    (tmp_path / "gives_way.py").write_text(GIVES_WAY)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(tmp_path / "gives_way.py"), str(tmp_path), str(left_s)]
    ended = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    taken, other = (json.loads((tmp_path / f"taken.{rank}").read_text()) for rank in (0, 1))
    assert taken == other and taken[:-1] == kept and taken[-1] > 2
