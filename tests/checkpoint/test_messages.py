"""What a person is told: where a run began, what a checkpointer is, which versions are under way,
what is missing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.format.manifest import CommitRecord  # noqa: E402
from deepvm.checkpoint.tiers.base import without_secrets  # noqa: E402
from deepvm.checkpoint.training.save_handle import KEPT, Handle, with_newest  # noqa: E402
from deepvm.core.units import format_bytes  # noqa: E402
from deepvm.errors import CheckpointError, DeepVMError, RequestError  # noqa: E402


def training(*places: Any, **options: Any) -> tuple[Any, Any, Checkpointer]:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return (
        model,
        optimizer,
        Checkpointer(model=model, optimizer=optimizer, tiers=[*places], **options),
    )


def step(model: Any, optimizer: Any) -> None:
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()


def test_scheduled_versions_have_handles(tmp_path: Path) -> None:
    model, optimizer, saver = training(tmp_path.as_uri(), every=2, keep=100, slots=4)
    assert saver.handles == ()
    for _ in range(6):
        step(model, optimizer)
        saver.wait()
    last = saver.save(block=True)
    assert [h.version for h in saver.handles] == [2, 4, 6] and saver.handles[-1] is last
    for handle in saver.handles:
        for future in (handle.snapshot_done, handle.local_done, handle.durable):
            assert future.result(30) == handle.version
        assert handle.durable.exception(30) is None
    saver.close()
    assert all(h.remote_done.done() for h in saver.handles), (
        "a folder promises nothing of the kind, and says so"
    )


def test_a_version_that_was_requested_has_one_too(tmp_path: Path) -> None:
    model, optimizer, saver = training(tmp_path.as_uri())
    step(model, optimizer)
    assert saver.handles == ()
    saver.request_save()
    step(model, optimizer)
    (handle,) = saver.handles
    assert handle.version == 2 and saver.save(block=True) is handle
    assert handle.durable.result(30) == 2
    saver.close()


def test_handles_of_weeks_take_little_memory() -> None:
    """All that are under way stay; of those that are done a few."""
    handles: tuple[Handle, ...] = ()
    pending = []
    for version in range(1, 5 * KEPT):
        handle = Handle(version)
        if version % KEPT == 1:
            pending.append(handle)
        else:
            handle.failed(CheckpointError("no"))
        handles = with_newest(handles, handle)
    assert len(handles) == KEPT
    assert [h for h in handles if not h.done] == pending and handles[-1].version == 5 * KEPT - 1
    assert [h.version for h in handles] == sorted(h.version for h in handles)
    for _ in range(2 * KEPT):
        handles = with_newest(handles, Handle(0))
    assert len(handles) >= 2 * KEPT


SCRIPT = """
import sys, torch
from deepvm.checkpoint import Checkpointer
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Checkpointer(model=model, optimizer=optimizer, tiers=sys.argv[1:]) as saver:
    for _ in range(saver.restore_latest(), 7):
        model(torch.ones(2, 300)).sum().backward()
        optimizer.step()
    saver.save(block=True)
"""


def run(
    tmp_path: Path, *places: str, before: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(before + textwrap.dedent(SCRIPT))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DEEPVM_")}
    kept["DEEPVM_JOB"] = "job"
    command = [sys.executable, str(script), *places]
    return subprocess.run(command, capture_output=True, text=True, env=kept | environ, timeout=120)


@pytest.mark.slow
def test_a_run_says_where_it_began(tmp_path: Path) -> None:
    place = (tmp_path / "ckpt").as_uri()
    first, second = run(tmp_path, place), run(tmp_path, place)
    assert (first.returncode, first.stdout, second.stdout) == (0, "", "")
    assert first.stderr == f"deepvm: no checkpoint at {place} (job job): starts at 0\n"
    assert second.stderr.startswith(
        f"deepvm: resumed from version 7 of {place} (job job, file job-000000000007.pt, saved 20"
    )
    (file,) = (tmp_path / "ckpt").glob("*7.pt")
    size = re.escape(format_bytes(file.stat().st_size))
    assert (
        re.search(rf" UTC, [0-9.]+ (s|min) ago, {size}\)\n$", second.stderr)
        and second.stderr.count("\n") == 1
    )


@pytest.mark.slow
def test_a_generation_says_which_version_and_tier_it_goes_on_from(tmp_path: Path) -> None:
    """One line, which is true: of two places the one with the newer version, its number, and how
    old it is.
    """
    old, new = (tmp_path / "old").as_uri(), (tmp_path / "new").as_uri()
    run(tmp_path, new)
    (tmp_path / "old").mkdir()
    (record,) = (tmp_path / "new").glob("*7.pt.json")
    manifest = CommitRecord.from_json(record.read_bytes())
    hour_ago = (datetime.now(timezone.utc) - timedelta(hours=1)).isoformat(timespec="seconds")
    record.write_bytes(replace(manifest, created=hour_ago).to_json())
    found = run(tmp_path, old, new, DEEPVM_EPOCH="3", DEEPVM_JOB="job")
    lines = [line for line in found.stderr.splitlines() if "resumed" in line]
    assert len(lines) == 1, found.stderr
    assert re.fullmatch(
        rf"deepvm: resumed from version 7 of {re.escape(new)} "
        r"\(job job, generation 3, file job-000000000007.pt, "
        r"saved .* UTC, 60(\.\d+)? min ago, .*\)",
        lines[0],
    ), lines


@pytest.mark.slow
def test_who_has_set_logging_up_gets_it_there(tmp_path: Path) -> None:
    place = (tmp_path / "ckpt").as_uri()
    quiet = run(tmp_path, place, before="import logging; logging.basicConfig()\n")
    assert quiet.stderr == ""
    loud = run(tmp_path, place, before="import logging; logging.basicConfig(level=logging.INFO)\n")
    assert (
        f"INFO:deepvm.checkpoint:resumed from version 7 of {place} (job job, file job-"
        in loud.stderr
    )


def test_what_a_checkpointer_looks_like(tmp_path: Path) -> None:
    model, optimizer, saver = training(tmp_path.as_uri(), every="10min", job="mine", strategy="G")
    step(model, optimizer)
    without_secrets = (
        f"Checkpointer(job='mine', version=1, tiers=['{tmp_path.as_uri()}'], every='10min',"
        " strategy='G')"
    )
    assert repr(saver) == without_secrets
    saver.close()
    assert repr(saver) == without_secrets[:-1] + ", closed)"


def test_secrets_in_an_address_are_not_shown() -> None:
    assert without_secrets("s3://KEY:secret@bucket/run") == "s3://***@bucket/run"
    assert without_secrets("tcp://u:secret@a:1,u:secret@b:2") == "tcp://***@a:1,***@b:2"
    assert without_secrets("x://host/run?token=secret&n=secret") == "x://host/run?token=***&n=***"
    assert without_secrets("file:///mnt/a@b/c,d@e") == "file:///mnt/a@b/c,d@e"


def test_a_token_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPVM_TOKEN_FILE", raising=False)
    for name, said in (
        (None, "not given"),
        ("", "not given"),
        (str(tmp_path / "none"), "No such file"),
    ):
        if name is not None:
            monkeypatch.setenv("DEEPVM_TOKEN_FILE", name)
        with pytest.raises(DeepVMError) as told:
            training("tcp://127.0.0.1:7070")
        text = str(told.value)
        assert (
            "DEEPVM_TOKEN_FILE" in text
            and said in text
            and "--token-file" in text
            and "\n" not in text
        )


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"tiers": [7]}, "tiers"),
        ({"tiers": ["tcp://nowhere"]}, "tiers"),
        ({"slots": 1.5}, "slots"),
        ({"job": 7}, "job"),
        ({"strategy": 7}, "strategy"),
        ({"model": "model"}, "model"),
    ],
)
def test_every_argument_is_refused_by_name(
    options: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("0" * 64)
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(tmp_path / "token"))
    model = torch.nn.Linear(8, 8)
    given: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    with pytest.raises(RequestError, match=f"for {name}: "):
        Checkpointer(**{**given, "tiers": [tmp_path.as_uri()], **options})


def test_a_path_is_a_folder(tmp_path: Path) -> None:
    model, optimizer, saver = training(tmp_path)
    step(model, optimizer)
    saver.save(block=True)
    saver.close()
    assert json.loads(next(tmp_path.glob("*.json")).read_text())


@pytest.mark.parametrize(
    ("place", "job", "warned"),
    [
        ("tcp://127.0.0.1:7070", "", True),
        ("tcp://127.0.0.1:7070", "mine", False),
        ("file", "", False),
    ],
)
def test_a_shared_place_wants_a_name(
    place: str, job: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    (tmp_path / "token").write_text("0" * 64)
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.delenv("DEEPVM_JOB", raising=False)
    by_argument = training(tmp_path.as_uri() if place == "file" else place, job=job or None)[2]
    assert (
        f"'{by_argument.job}'" in caplog.text
        and "DEEPVM_JOB" in caplog.text
        and place in caplog.text
    ) is warned
    by_argument.close()
    caplog.clear()
    monkeypatch.setenv("DEEPVM_JOB", "mine")
    training(tmp_path.as_uri() if place == "file" else place)[2].close()
    assert "DEEPVM_JOB" not in caplog.text
