"""``deepvm ckpt``: lists, verifies, thins out and restores, and never shows a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.images import manifest_of, names, noise, write_to_folder, write_version
from support.checkpoint.memory_nodes import TOKEN
from support.checkpoint.memory_nodes import running as node_running
from support.checkpoint.object_store import BUCKET, CREDENTIALS, running
from support.checkpoint.version_files import flip, left, put
from support.command import Run

from deepvm.checkpoint.files import commit_record
from deepvm.checkpoint.files.commit_record import UPCOMING
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import SUFFIX, CommitRecord
from deepvm.checkpoint.tiers import file as file_tier
from deepvm.checkpoint.tiers.s3 import S3Tier
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.errors import CheckpointError, DamagedError


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "ckpt")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Versions 1 to 3."""
    place = tmp_path / "ck pt"
    for version in (1, 2, 3):
        put(place, version)
    return place


class TestLs:
    @pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}"])
    def test_json(self, folder: Path, run: Run, form: str) -> None:
        (folder / f"job-000000000002.pt{SUFFIX}").unlink()
        code, out, _ = run("ls", form.format(folder), "-o", "json")
        rows = json.loads(out)
        assert code == 0
        assert [(r["version"], r["complete"], r["bytes"], r["job"]) for r in rows] == [
            (3, True, 1000, "job"),
            (2, False, 1000, "job"),
            (1, True, 1000, "job"),
        ]
        assert rows[0]["path"] == str(folder / "job-000000000003.pt")
        assert rows[0]["problem"] is None
        assert "no manifest" in rows[1]["problem"]
        assert set(rows[0]) == {
            "job",
            "version",
            "path",
            "bytes",
            "complete",
            "problem",
            "created_at",
        }

    def test_table(self, folder: Path, run: Run) -> None:
        put(folder, 7, job="other")
        code, out, _ = run("ls", folder)
        lines = [line.split() for line in out.splitlines()]
        assert code == 0
        assert lines[0] == ["job", "version", "size", "created", "state"]
        assert lines[1] == ["job", "3", "1", "kB", "complete"]
        assert run("ls", folder, "--job", "other")[1].splitlines()[1].split()[:2] == ["other", "7"]

    def test_nothing_there(self, tmp_path: Path, run: Run) -> None:
        assert run("ls", tmp_path, "-o", "json")[:2] == (0, "[]\n")
        code, out, err = run("ls", tmp_path / "nowhere")
        assert (code, out) == (4, "")
        assert "nowhere: there is no such file or folder" in err

    def test_places_that_cannot_be(self, run: Run) -> None:
        for place in ["file://host/x", "ftp://x/y", "file://"]:
            code, _, err = run("ls", place)
            assert code == 2
            assert place in err

    @pytest.mark.parametrize("url", ["file://{}#1", "s3://bucket/run?x=1"])
    @pytest.mark.parametrize("command", [["ls"], ["restore", "--to", "x"]])
    def test_what_would_be_another_place_is_refused(
        self, folder: Path, run: Run, url: str, command: list[str]
    ) -> None:
        code, out, err = run(command[0], url.format(folder), *command[1:])
        assert (
            (code, out) == (2, "")
            and err.startswith("Error: invalid value for PLACE:")
            and "without ? and #" in err
        )

    @pytest.mark.parametrize(
        "place", ["s3://", "s3:///x", "tcp://h:99999", "tcp://a:1,a:1", "mpi://0", "tcp://h"]
    )
    def test_errors_name_what_was_given(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
    ) -> None:
        (tmp_path / "token").write_text("open sesame, and then some")
        monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(tmp_path / "token"))
        code, _, err = run("ls", place)
        assert code == 2 and err.startswith(f"Error: invalid value for PLACE: '{place}'")

    def test_an_endpoint_that_is_no_url(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("boto3")
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "garbage")
        code, _, err = run("ls", "s3://bucket/x")
        assert code == 1 and "garbage" in err and "AWS_ENDPOINT_URL_S3" in err

    def test_a_file_is_no_folder(self, folder: Path, run: Run) -> None:
        assert run("ls", folder / "job-000000000001.pt")[0] == 2


class TestVerify:
    def test_good(self, folder: Path, run: Run) -> None:
        code, out, err = run("verify", folder)
        assert code == 0
        assert out == f"{folder}: 3 good\n"
        assert [line.rsplit(" ", 1)[1] for line in err.splitlines()] == ["good"] * 3
        assert run("verify", folder / "job-000000000001.pt")[0] == 0
        assert run("verify", f"file://{folder}")[0] == 0

    @pytest.mark.parametrize("what", ["file", "folder"])
    def test_damaged_bytes_are_named(self, folder: Path, run: Run, what: str) -> None:
        path = folder / "job-000000000002.pt"
        flip(path, 500)
        code, _, err = run("verify", path if what == "file" else folder)
        assert code == 1
        assert f"Error: {path}: bytes 0 to 999 are damaged" in err

    def test_all_damage_is_named(self, folder: Path, run: Run) -> None:
        flip(folder / "job-000000000001.pt", 0)
        flip(folder / f"job-000000000002.pt{SUFFIX}", 30)
        (folder / "job-000000000003.pt").unlink()
        code, _, err = run("verify", folder)
        assert code == 1
        report = err[err.index("Error:") :]
        assert all(f"job-{v:012d}.pt" in report for v in (1, 2, 3))
        assert run("verify", folder / "job-000000000003.pt")[0] == 4

    def test_a_file_that_lost_its_record(self, folder: Path, run: Run) -> None:
        (folder / f"job-000000000003.pt{SUFFIX}").unlink()
        code, out, err = run("verify", folder)
        assert (code, out) == (1, "")
        assert "job-000000000003.pt: it has no manifest" in err
        assert run("verify", folder / "job-000000000003.pt")[0] == 1

    @pytest.mark.parametrize("what", ["file", "record"])
    @pytest.mark.parametrize("kind", ["folder", "pipe", "link", "dangling link"])
    def test_what_is_no_file(
        self, folder: Path, run: Run, kind: str, what: str, tmp_path: Path
    ) -> None:
        """A link to the very bytes is damage too: whoever keeps them does not know of it."""
        name = f"job-000000000003.pt{SUFFIX if what == 'record' else ''}"
        path, elsewhere = folder / name, tmp_path / name
        path.rename(elsewhere)
        make = {
            "folder": path.mkdir,
            "pipe": lambda: os.mkfifo(path),
            "link": lambda: path.symlink_to(elsewhere),
        }
        make["dangling link"] = lambda: path.symlink_to("nowhere")
        make[kind]()
        file = folder / "job-000000000003.pt"
        for place in (folder, file) if (kind, what) != ("folder", "file") else (folder,):
            code, out, err = run("verify", place)
            assert (code, out) == (1, "") and name in err, (place, err)
        rows = {r["version"]: r for r in json.loads(run("ls", folder, "-o", "json")[1])}
        assert [v for v, r in rows.items() if r["complete"]] == [2, 1] and rows[3]["problem"]
        assert (
            run("restore", folder, "--to", tmp_path / "out.pt")[1]
            == f"{tmp_path / 'out.pt'}: version 2 of job\n"
        )
        code, out, err = run("gc", folder, "--keep", 1)
        assert (code, out) == (0, f"removed {folder / 'job-000000000001.pt'}\n")
        assert "job-000000000003.pt: stays: " in err and os.path.lexists(path)

    @pytest.mark.parametrize("left", ["nothing", "its file"])
    def test_beside_a_training_that_removes_a_version(
        self, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, left: str
    ) -> None:
        """Between the removal of a record and of its file the disk is synchronized: that is no
        damage yet.
        """
        real, path = commit_record.verify, folder / "job-000000000001.pt"

        def slow(looked: Path, *more: Any) -> Any:
            if looked == path:
                path.with_name(path.name + SUFFIX).unlink()
                if left == "nothing":
                    threading.Timer(0.1, path.unlink).start()
                raise DamagedError(f"{path}: its manifest cannot be read")
            return real(looked, *more)

        monkeypatch.setattr(file_tier, "verify", slow)
        code, out, err = run("verify", folder)
        if left == "nothing":
            assert (code, out) == (0, f"{folder}: 2 good\n")
            assert "version 1 of job: removed meanwhile" in err
        else:
            assert code == 1 and str(path) in err

    def test_nothing_to_verify(self, folder: Path, run: Run, tmp_path: Path) -> None:
        assert run("verify", tmp_path)[0] == 1
        assert run("verify", folder, "--job", "nobody")[0] == 1
        assert run("verify", tmp_path / "nowhere")[0] == 4
        assert run("verify", "mpi://0")[0] == 2

    def test_only_one_job(self, folder: Path, run: Run) -> None:
        flip(put(folder, 1, job="other"), 3)
        assert run("verify", folder, "--job", "job")[0] == 0
        assert run("verify", folder, "--job", "other")[0] == 1


class TestGc:
    @pytest.fixture(autouse=True)
    def _more(self, folder: Path) -> None:
        for version in (4, 5, 6):
            put(folder, version)

    def test_keep(self, folder: Path, run: Run) -> None:
        assert run("gc", folder, "--keep", 2)[0] == 0
        assert left(folder) == [6, 5]
        assert run("gc", folder, "--keep", 1)[1] == f"removed {folder / 'job-000000000005.pt'}\n"
        assert len(names(folder)) == 2

    def test_every_and_best(self, folder: Path, run: Run) -> None:
        assert run("gc", folder, "--keep", 1, "--every", 3, "--best", 2)[0] == 0
        assert left(folder) == [6, 3, 2]

    def test_dry_run(self, folder: Path, run: Run) -> None:
        before = sorted(os.listdir(folder))
        code, out, _ = run("gc", folder, "--keep", 5, "--dry-run")
        assert (code, out) == (0, f"would remove {folder / 'job-000000000001.pt'}\n")
        assert sorted(os.listdir(folder)) == before

    def test_the_last_good_one_stays(self, folder: Path, run: Run) -> None:
        for version in (3, 4, 5, 6):
            flip(folder / f"job-{version:012d}.pt", 9)
        code, _, err = run("gc", folder, "--keep", 1)
        assert code == 0
        assert left(folder) == [6, 5, 4, 3, 2]
        assert err.count("it stays") == 4
        assert run("gc", folder, "--keep", 1, "--trust")[0] == 0
        assert left(folder) == [6]

    def test_jobs_are_thinned_out_each_for_itself(self, folder: Path, run: Run) -> None:
        put(folder, 1, job="other")
        put(folder, 2, job="other")
        run("gc", folder, "--keep", 1, "--job", "other")
        assert left(folder) == [6, 5, 4, 3, 2, 1, 2]
        run("gc", folder, "--keep", 1)
        assert left(folder) == [6, 2]

    def test_leftovers_go_when_they_are_old(
        self, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder / f"job-000000000006.pt{SUFFIX}").unlink()
        hidden = folder / ".job-000000000009.pt.0123abcd.tmp"
        hidden.write_bytes(b"half")
        (folder / f"job-000000000005.pt{SUFFIX}").write_bytes(b"{}")
        mine = folder / "notes.tmp"
        mine.write_bytes(b"")
        assert run("gc", folder, "--keep", 9)[1] == ""
        later = time.time() + 3700
        monkeypatch.setattr(time, "time", lambda: later)
        assert run("gc", folder, "--keep", 9, "--dry-run")[1].count("would remove") == 1
        code, out, err = run("gc", folder, "--keep", 9)
        assert out == f"removed {hidden}\n"
        assert "job-000000000005.pt: stays" in err
        assert "job-000000000006.pt: stays: it has no manifest" in err
        assert left(folder) == [6, 5, 4, 3, 2, 1]
        assert mine.exists()

    def test_what_lost_its_record_goes_when_it_would_not_stay_with_one(
        self, folder: Path, run: Run
    ) -> None:
        for version in (1, 3, 6):
            (folder / f"job-{version:012d}.pt{SUFFIX}").unlink()
        assert (
            run("gc", folder, "--keep", 2, "--every", 3, "--dry-run")[1].count("would remove") == 2
        )
        assert run("gc", folder, "--keep", 2, "--every", 3)[0] == 0
        assert left(folder) == [6, 5, 4, 3]
        assert run("gc", folder, "--keep", 2)[0] == 0
        assert left(folder) == [6, 5, 4]

    def test_the_newest_best_one_stays(self, folder: Path, run: Run) -> None:
        for version in (1, 2):
            put(folder, version, best=True)
        assert run("gc", folder, "--keep", 2)[0] == 0
        assert left(folder) == [6, 5, 2]

    @pytest.mark.parametrize("more", [["--every", 3], ["--best", 3]])
    def test_what_stays_for_another_reason_is_verified_too(
        self, folder: Path, run: Run, more: list[object]
    ) -> None:
        flip(folder / "job-000000000003.pt", 9)
        code, _, err = run("gc", folder, "--keep", 1, *more)
        assert code == 0 and "does not count" in err
        assert left(folder) == ([6, 4, 3] if more[0] == "--every" else [6, 3])

    def test_the_damaged_best_one_does_not_count(self, folder: Path, run: Run) -> None:
        for version in (1, 2):
            put(folder, version, best=True)
        flip(folder / "job-000000000002.pt", 9)
        assert run("gc", folder, "--keep", 1)[0] == 0
        assert left(folder) == [6, 2, 1]

    def test_a_best_one_that_is_not_there(self, folder: Path, run: Run) -> None:
        code, out, err = run("gc", folder, "--keep", 1, "--best", 2, "--best", 20000)
        assert (code, out) == (2, "") and "--best: 20000" in err and "6, 5, 4, 3, 2, 1" in err
        assert len(left(folder)) == 6

    def test_stray_upcoming_records_go(
        self, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a version that is complete, and of one that is gone."""
        strays = [folder / f".job-{version:012d}.pt{SUFFIX}{UPCOMING}" for version in (5, 9)]
        for stray in strays:
            stray.write_bytes((folder / f"job-000000000006.pt{SUFFIX}").read_bytes())
        assert run("gc", folder, "--keep", 9)[1] == ""
        later = time.time() + 3700
        monkeypatch.setattr(time, "time", lambda: later)
        assert run("gc", folder, "--keep", 9, "--dry-run")[1] == "".join(
            f"would remove {s}\n" for s in strays
        )
        assert all(s.exists() for s in strays)
        assert run("gc", folder, "--keep", 9)[1] == "".join(f"removed {s}\n" for s in strays)
        assert not any(s.exists() for s in strays)
        assert left(folder) == [6, 5, 4, 3, 2, 1] and run("verify", folder)[0] == 0

    @pytest.mark.parametrize(
        "words", [["--keep", "0"], ["--keep", "-1"], ["--every", "-1"], ["--keep", "x"]]
    )
    def test_policies_that_cannot_be(self, folder: Path, run: Run, words: list[str]) -> None:
        assert run("gc", folder, *words)[0] == 2
        assert len(left(folder)) == 6

    def test_only_folders(self, run: Run) -> None:
        assert run("gc", "s3://bucket/x")[0] == 2


class TestRestore:
    def test_the_newest(self, folder: Path, run: Run, tmp_path: Path) -> None:
        target = tmp_path / "model.pt"
        target.write_bytes(b"older")
        code, out, _ = run("restore", folder, "--to", target)
        assert (code, out) == (0, f"{target}: version 3 of job\n")
        assert target.read_bytes() == noise(1000, 3)
        assert sorted(os.listdir(tmp_path)) == ["ck pt", "model.pt"]

    def test_one_of_them(self, folder: Path, run: Run, tmp_path: Path) -> None:
        target = tmp_path / "model.pt"
        assert run("restore", folder, "--to", target, "--version", 2)[0] == 0
        assert target.read_bytes() == noise(1000, 2)
        assert run("restore", folder / "job-000000000001.pt", "--to", target)[0] == 0
        assert target.read_bytes() == noise(1000, 1)
        assert (
            run("restore", folder / "job-000000000001.pt", "--to", target, "--version", 2)[0] == 2
        )
        code, _, err = run("restore", folder, "--to", target, "--version", 9)
        assert code == 4
        assert "no complete checkpoint 9 of job job" in err

    def test_damaged_ones_are_skipped(self, folder: Path, run: Run, tmp_path: Path) -> None:
        target = tmp_path / "model.pt"
        flip(folder / "job-000000000003.pt", 1)
        code, out, err = run("restore", folder, "--to", target)
        assert (code, out) == (0, f"{target}: version 2 of job\n")
        assert "skipped" in err
        target.unlink()
        code, _, err = run("restore", folder, "--to", target, "--version", 3)
        assert code == 1
        assert "bytes 0 to 999 are damaged" in err
        for version in (1, 2):
            flip(folder / f"job-{version:012d}.pt", 1)
        assert run("restore", folder, "--to", target)[0] == 4
        assert not target.exists()

    def test_jobs_must_be_told_apart(self, folder: Path, run: Run, tmp_path: Path) -> None:
        put(folder, 8, job="other")
        target = tmp_path / "model.pt"
        code, _, err = run("restore", folder, "--to", target)
        assert code == 2
        assert "job, other" in err
        assert run("restore", folder, "--to", target, "--job", "other")[0] == 0
        assert target.read_bytes() == noise(1000, 8)

    def test_the_job_of_the_environment(
        self, folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(folder, 8, job="other")
        target = tmp_path / "model.pt"
        monkeypatch.setenv("DEEPVM_JOB", "other")
        assert run("restore", folder, "--to", target)[:2] == (0, f"{target}: version 8 of other\n")
        assert run("restore", folder, "--to", target, "--job", "job")[0] == 0
        assert target.read_bytes() == noise(1000, 3)
        monkeypatch.setenv("DEEPVM_JOB", "third")
        code, _, err = run("restore", folder, "--to", target)
        assert code == 4 and "job third" in err

    def test_a_file_of_another_job(self, folder: Path, run: Run, tmp_path: Path) -> None:
        words = ("restore", folder / "job-000000000002.pt", "--to", tmp_path / "model.pt", "--job")
        code, _, err = run(*words, "other")
        assert (
            code == 2
            and err.startswith("Error: invalid value for --job: 'other'")
            and not (tmp_path / "model.pt").exists()
        )
        assert run(*words, "job")[0] == 0

    @pytest.mark.parametrize(
        "name", ["j.part-1-of-99999999", "j.part-3-of-2", "j.part-0-of-2", "j.part-01-of-2"]
    )
    def test_a_job_that_happens_to_be_called_like_a_part(
        self, folder: Path, run: Run, tmp_path: Path, name: str
    ) -> None:
        put(folder, 5, job=name)
        target = tmp_path / "model.pt"
        code, _, err = run("restore", folder, "--to", target, "--job", "j")
        assert code == 4 and "--parts" not in err
        assert run("restore", folder, "--to", target, "--job", name)[:2] == (
            0,
            f"{target}: version 5 of {name}\n",
        )
        assert run("gc", folder, "--keep", 1, "--job", name)[:2] == (0, "")

    @pytest.mark.parametrize("to", [".", "nowhere/x"])
    def test_targets_that_cannot_be(self, folder: Path, run: Run, tmp_path: Path, to: str) -> None:
        assert run("restore", folder, "--to", tmp_path / to)[0] == 2

    def test_sources_that_are_not_there(self, run: Run, tmp_path: Path) -> None:
        assert run("restore", tmp_path / "nowhere", "--to", tmp_path / "x")[0] == 4
        assert run("restore", tmp_path, "--to", tmp_path / "x")[0] == 4

    def test_a_full_disk_leaves_the_old_file(
        self, folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import shutil

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        target = tmp_path / "model.pt"
        target.write_bytes(b"older")
        monkeypatch.setattr(shutil, "copyfile", fail)
        code, _, err = run("restore", folder, "--to", target)
        assert code == 1
        assert "No space left" in err
        assert target.read_bytes() == b"older"
        assert sorted(os.listdir(tmp_path)) == ["ck pt", "model.pt"]


class TestSafetensors:
    @pytest.fixture
    def torch_folder(self, tmp_path: Path) -> Path:
        torch = pytest.importorskip("torch")
        tied = torch.arange(6.0).reshape(2, 3)
        tree = {
            "model": {
                "a.weight": tied,
                "b.weight": tied,
                "c": tied.t(),
                "half": torch.ones(3, dtype=torch.bfloat16),
            },
            "optimizer": {"x": torch.zeros(1000)},
            "extra": {},
            "version": 4,
        }
        tree["model"]["nested"] = {"scalar": torch.tensor(3), "words": "no tensor"}
        torch.save(tree, tmp_path / "x")
        data = (tmp_path / "x").read_bytes()
        write_to_folder(VersionFolder(tmp_path / "v"), data, manifest_of(data, version=4))
        return tmp_path / "v"

    def test_the_model_alone(self, torch_folder: Path, run: Run, tmp_path: Path) -> None:
        pytest.importorskip("safetensors")
        from safetensors import safe_open

        target = tmp_path / "model.safetensors"
        code, out, _ = run("restore", torch_folder, "--to", target, "--format", "safetensors")
        assert (code, out) == (0, f"{target}: version 4 of job\n")
        with safe_open(target, "pt") as stream:
            assert sorted(stream.keys()) == ["a.weight", "b.weight", "c", "half", "nested.scalar"]
            assert stream.get_tensor("c").tolist() == [[0, 3], [1, 4], [2, 5]]
            assert str(stream.get_tensor("half").dtype) == "torch.bfloat16"
            assert stream.metadata()["deepvm_version"] == "4"
        (tmp_path / "usual").touch()
        assert target.stat().st_mode == (tmp_path / "usual").stat().st_mode

    def test_what_is_no_model(self, folder: Path, run: Run, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        pytest.importorskip("safetensors")
        code, _, err = run("restore", folder, "--to", tmp_path / "x", "--format", "safetensors")
        assert code == 1
        assert "holds no model" in err
        assert not (tmp_path / "x").exists()

    def test_without_the_library(
        self, torch_folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "safetensors.torch", None)
        code, _, err = run(
            "restore", torch_folder, "--to", tmp_path / "y", "--format", "safetensors"
        )
        assert code == 2
        assert "safetensors" in err
        assert "'.[train]'" in err


def test_a_bucket(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support.checkpoint.images import plain_shard

    from deepvm.checkpoint.tiers.s3 import S3Tier

    with running() as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        tier = S3Tier(BUCKET, "run")
        for version in (1, 2):
            tier.put(plain_shard(noise(1000, version), version), lambda level: None)
        code, out, _ = run("ls", f"s3://{BUCKET}/run", "-o", "json")
        assert code == 0
        assert [(r["version"], r["path"]) for r in json.loads(out)] == [
            (v, f"s3://{BUCKET}/run/job-{v:012d}.pt") for v in (2, 1)
        ]
        assert run("restore", f"s3://{BUCKET}/run", "--to", tmp_path / "x")[0] == 0
        assert (tmp_path / "x").read_bytes() == noise(1000, 2)
        assert os.listdir(tmp_path) == ["x"]
        assert run("verify", f"s3://{BUCKET}/run")[:2] == (0, f"s3://{BUCKET}/run: 2 good\n")
        where = {"Bucket": BUCKET, "Key": "run/job-000000000001.pt"}
        store.client().put_object(**where, Body=noise(1000, 3))
        code, out, err = run("verify", f"s3://{BUCKET}/run")
        assert (code, out) == (1, "")
        assert "version 2 of job: good" in err and "version 1 of job: damaged" in err
        assert "job-000000000001.pt" in err[err.index("Error:") :]
        code, _, err = run("verify", f"s3://{BUCKET}/run", "--job", "nobody")
        assert code == 1 and "no complete checkpoint of job nobody" in err


def test_verify_beside_a_node_that_removes_a_version(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list and its turn; a version that is listed and cannot be read stays an error."""
    (tmp_path / "token").write_bytes(TOKEN)
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(tmp_path / "token"))
    kept = tmp_path / "kept"
    for version in (1, 2, 3):
        put(kept, version)
    fetch, gone = TcpTier.fetch, kept / "job-000000000002.pt"

    def late(tier: TcpTier, manifest: CommitRecord, folder: Path) -> Path:
        gone.with_name(gone.name + SUFFIX).unlink(missing_ok=True)
        gone.unlink(missing_ok=True)
        return fetch(tier, manifest, folder)

    monkeypatch.setattr(TcpTier, "fetch", late)
    with node_running(persist=kept) as node:
        code, out, err = run("verify", node.url)
        assert (code, out) == (
            0,
            f"{node.url}: 2 good\n",
        ) and "version 2 of job: removed meanwhile" in err

        def fails(tier: TcpTier, manifest: CommitRecord, folder: Path) -> Path:
            raise CheckpointError("cannot be read now")

        monkeypatch.setattr(TcpTier, "fetch", fails)
        code, _, err = run("verify", node.url)
        assert code == 1 and "cannot be read now" in err


@pytest.mark.parametrize("where", ["folder", "node", "node and bucket", "bucket"])
def test_half_of_a_version(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Its record or its file is gone: all commands know, wherever they are asked to look."""
    kept = tmp_path / "kept"
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(running())
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        if "bucket" in where:
            writer = S3Tier(BUCKET, "run", endpoint=store.url)
            for version in (1, 2, 3):
                data = noise(1000, version)
                write_version(writer, data, manifest_of(data, version=version))
            for name in ("2.pt" + SUFFIX, "3.pt"):
                store.client().delete_object(Bucket=BUCKET, Key=f"run/job-00000000000{name}")
        else:
            for version in (1, 2, 3):
                put(kept, version)
            for name in ("2.pt" + SUFFIX, "3.pt"):
                (kept / f"job-00000000000{name}").unlink()
        place = {"folder": str(kept), "bucket": f"s3://{BUCKET}/run"}.get(where, "")
        if not place:
            token = tmp_path / "token"
            token.write_bytes(TOKEN)
            monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(token))
            persist = kept if where == "node" else f"s3://{BUCKET}/run"
            place = stack.enter_context(node_running(persist=persist)).url  # type: ignore[attr-defined]
        code, out, err = run("verify", place)
        report = err[err.index("Error:") :]
        assert (code, out) == (1, "")
        assert "job-000000000002.pt: it has no manifest" in report
        assert "job-000000000003.pt: " in report
        assert "job-000000000001.pt" not in report
        rows = json.loads(run("ls", place, "-o", "json")[1])
        assert [(r["version"], r["complete"]) for r in rows] == [(3, False), (2, False), (1, True)]
        assert len({frozenset(r) for r in rows}) == 1, "the same keys"
        assert run("restore", place, "--to", tmp_path / "out.pt")[1].endswith(
            ": version 1 of job\n"
        )
        assert (tmp_path / "out.pt").read_bytes() == bytes(noise(1000, 1))
        code, _, err = run("restore", place, "--to", tmp_path / "out.pt", "--version", 2)
        assert code == 4 and "2 damaged, see 'deepvm ckpt verify'" in err


@pytest.mark.parametrize("command", ["ls", "verify", "gc"])
def test_nothing_slow_is_loaded(folder: Path, command: str) -> None:
    script = (
        "import sys\ntry:\n    from deepvm.cli.main import main; main(sys.argv[1:])\nexcept"
        " SystemExit as end:\n    assert not end.code\nprint(sorted({'torch', 'numpy', 'boto3',"
        " 'pandas', 'pydantic.main'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", script, "ckpt", command, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
