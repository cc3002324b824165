"""``deepvm ckpt`` on the parts that several memory nodes have kept of a version."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from support.checkpoint.images import manifest_of, noise, write_to_folder
from support.checkpoint.version_files import flip, left, put
from support.command import Run

from deepvm.checkpoint.files.version_dir import VersionFolder


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "ckpt")


def put_part(folder: Path, version: int, number: int, mark: int) -> None:
    """Part ``number`` of two."""
    from support.checkpoint.images import plain_shard

    from deepvm.checkpoint.files.file_names import part_job
    from deepvm.checkpoint.files.stripe import plan_part

    shard = plain_shard(noise(5000, version), version)
    plan = plan_part(shard.layout, number, 2)
    data = bytearray(plan.shard(shard, partial(bytes, [mark] * 16)).image[0 : plan.layout.size])
    write_to_folder(
        VersionFolder(folder), data, manifest_of(data, part_job("job", number, 2), version)
    )


class TestParts:
    """What several memory nodes have kept."""

    @pytest.fixture
    def folders(self, tmp_path: Path) -> list[Path]:
        """Versions 1 and 2 in two parts, each in a folder of its own."""
        pytest.importorskip("torch")
        folders = [tmp_path / "node 1", tmp_path / "node 2"]
        for version in (1, 2):
            for number, folder in enumerate(folders, start=1):
                put_part(folder, version, number, version)
        return folders

    def test_they_are_joined(self, run: Run, folders: list[Path], tmp_path: Path) -> None:
        to = tmp_path / "out.pt"
        code, out, err = run("restore", folders[0], "--parts", folders[1], "--to", to)
        assert (code, out, err) == (0, f"{to}: version 2 of job\n", "")
        assert to.read_bytes() == noise(5000, 2)
        assert (
            run("restore", folders[1], "--parts", folders[0], "--to", to, "--version", "1")[0] == 0
        )
        assert to.read_bytes() == noise(5000, 1)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["node 1", "node 2", "out.pt"]
        assert [f.version for f in VersionFolder(folders[0]).found()] == [2, 1]

    def test_in_one_folder(self, run: Run, folders: list[Path], tmp_path: Path) -> None:
        for path in folders[1].iterdir():
            path.rename(folders[0] / path.name)
        to = tmp_path / "out.pt"
        assert run("restore", folders[0], "--to", to)[:2] == (0, f"{to}: version 2 of job\n")
        assert to.read_bytes() == noise(5000, 2)
        jobs = {row["job"] for row in json.loads(run("ls", folders[0], "-o", "json")[1])}
        assert jobs == {"job.part-1-of-2", "job.part-2-of-2"}

    def test_a_damaged_part_costs_its_version(
        self, run: Run, folders: list[Path], tmp_path: Path
    ) -> None:
        flip(folders[1] / "job.part-2-of-2-000000000002.pt", 3000)
        to = tmp_path / "out.pt"
        code, out, err = run("restore", folders[0], "--parts", folders[1], "--to", to)
        assert (code, out) == (0, f"{to}: version 1 of job\n") and "damaged" in err
        assert to.read_bytes() == noise(5000, 1)

    def test_a_part_alone_says_what_is_missing(
        self, run: Run, folders: list[Path], tmp_path: Path
    ) -> None:
        code, out, err = run("restore", folders[0], "--to", tmp_path / "out.pt")
        assert (code, out) == (4, "") and "--parts" in err
        assert not (tmp_path / "out.pt").exists()

    def test_parts_that_were_not_sent_together(
        self, run: Run, folders: list[Path], tmp_path: Path
    ) -> None:
        names = [folders[0] / f"job.part-1-of-2-{v:012d}.pt" for v in (1, 2)]
        data = names[0].read_bytes()
        write_to_folder(VersionFolder(folders[0]), data, manifest_of(data, "job.part-1-of-2", 2))
        code, out, err = run(
            "restore", folders[0], "--parts", folders[1], "--to", tmp_path / "out.pt"
        )
        assert (code, out) == (
            0,
            f"{tmp_path / 'out.pt'}: version 1 of job\n",
        ) and "not sent together" in err

    def test_thinned_out_together(self, run: Run, folders: list[Path], tmp_path: Path) -> None:
        """One of the nodes is behind, and a part is damaged: what can be joined is what counts."""
        for path in folders[1].iterdir():
            path.rename(folders[0] / path.name)
        place = VersionFolder(folders[0])
        for version in (3, 4):  # the other node has not written its parts yet
            data = (folders[0] / "job.part-1-of-2-000000000002.pt").read_bytes()
            write_to_folder(place, data, manifest_of(data, "job.part-1-of-2", version))
        code, out, _ = run("gc", folders[0], "--keep", "1")
        assert code == 0 and [Path(w).name for w in out.split() if w.endswith(".pt")] == [
            "job.part-1-of-2-000000000001.pt",
            "job.part-2-of-2-000000000001.pt",
        ]
        assert [m.version for m in place.versions("job.part-1-of-2")] == [4, 3, 2]
        assert run("restore", folders[0], "--to", tmp_path / "out.pt")[1].endswith(
            "version 2 of job\n"
        )

    def test_a_damaged_part_does_not_count_as_kept(self, run: Run, folders: list[Path]) -> None:
        for path in folders[1].iterdir():
            path.rename(folders[0] / path.name)
        flip(folders[0] / "job.part-2-of-2-000000000002.pt", 3000)
        code, out, err = run("gc", folders[0], "--keep", "1")
        assert (code, out) == (0, "") and "does not count" in err
        assert len(VersionFolder(folders[0]).found()) == 4

    def test_parts_of_different_attempts_are_no_good_version(
        self, run: Run, folders: list[Path], tmp_path: Path
    ) -> None:
        """The trainer has sent version 2 twice, and one node's write of the second was lost."""
        for path in folders[1].iterdir():
            path.rename(folders[0] / path.name)
        put_part(folders[0], 2, 1, mark=9)
        code, out, err = run("verify", folders[0])
        assert (code, out) == (1, "") and "not sent together" in err and "000000000002.pt" in err
        for more in ([], ["--trust"]):
            code, out, err = run("gc", folders[0], "--keep", "1", *more)
            assert (code, out) == (0, "") and "not sent together" in err and "does not count" in err
        to = tmp_path / "out.pt"
        assert run("restore", folders[0], "--to", to)[:2] == (0, f"{to}: version 1 of job\n")

    def test_where_parts_are_elsewhere_all_stay(
        self, run: Run, folders: list[Path], tmp_path: Path
    ) -> None:
        """The other node is behind: what this folder has newest cannot be joined."""
        VersionFolder(folders[1]).delete("job.part-2-of-2", 2)
        before = [sorted(p.name for p in f.iterdir()) for f in folders]
        code, out, err = run("gc", folders[0], "--keep", "1")
        assert (code, out) == (0, "") and "job.part-1-of-2: all stay" in err and "--parts" in err
        code, out, _ = run("gc", folders[0], "--parts", folders[1], "--keep", "1")
        assert (code, out) == (0, "")
        assert [sorted(p.name for p in f.iterdir()) for f in folders] == before
        to = tmp_path / "out.pt"
        assert (
            run("restore", folders[0], "--parts", folders[1], "--to", to)[1]
            == f"{to}: version 1 of job\n"
        )

    def test_folders_of_parts_are_thinned_out_together(
        self, run: Run, folders: list[Path], tmp_path: Path
    ) -> None:
        put(folders[1], 1)
        put(folders[1], 2)
        words = ("gc", folders[0], "--parts", folders[1], "--keep", "1", "--job", "job")
        old = [
            folder / f"job.part-{n}-of-2-000000000001.pt"
            for n, folder in enumerate(folders, start=1)
        ]
        assert run(*words, "--dry-run")[:2] == (0, "".join(f"would remove {p}\n" for p in old))
        assert run(*words)[:2] == (0, "".join(f"removed {p}\n" for p in old))
        # Of the other folder only the parts are looked at
        assert sorted(left(folders[1])) == [1, 2, 2]
        to = tmp_path / "out.pt"
        assert (
            run("restore", folders[0], "--parts", folders[1], "--to", to)[1]
            == f"{to}: version 2 of job\n"
        )
        assert run("gc", folders[0], "--parts", tmp_path / "nowhere")[0] == 4

    def test_the_folder_itself_among_the_others(self, run: Run, folders: list[Path]) -> None:
        """It is one folder, not two copies."""
        code, out, err = run(
            "gc", folders[0], "--parts", folders[1], "--parts", folders[0], "--keep", "1"
        )
        assert code == 0 and err == "" and out.count("removed") == 2
