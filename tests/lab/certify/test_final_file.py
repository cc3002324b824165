"""Digests of files of final parameters: of the tensors in them, wherever they lie, and of nothing
else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from deepvm.errors import DataError, RequestError
from deepvm.lab.certify.attempt import Subject, digest_of_file
from deepvm.lab.certify.certifier import certify

torch = pytest.importorskip("torch")
WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])}


def saved(folder: Path, value: Any, name: str = "f.pt") -> str:
    torch.save(value, folder / name)
    return digest_of_file(folder / name, folder)


def test_equal_tensors_have_equal_digests(tmp_path: Path) -> None:
    first = saved(tmp_path, {"model": WEIGHTS, "step": 3, "names": ["x"]})
    assert first == saved(tmp_path, {"step": 4, "model": dict(reversed(WEIGHTS.items()))})


@pytest.mark.parametrize(
    "other",
    [
        {**WEIGHTS, "b": torch.tensor([1, 3])},
        {**WEIGHTS, "b": torch.tensor([1, 2], dtype=torch.int32)},
        {**WEIGHTS, "a.weight": WEIGHTS["a.weight"].reshape(3, 2)},
        {"a.weight": WEIGHTS["a.weight"]},
        {"a.weight": WEIGHTS["a.weight"], "c": WEIGHTS["b"]},
        {"a.weight": WEIGHTS["a.weight"].nextafter(torch.tensor(9.0)), "b": WEIGHTS["b"]},
    ],
    ids=["value", "kind", "shape", "missing", "name", "last bit"],
)
def test_other_tensors_have_other_digests(tmp_path: Path, other: Any) -> None:
    assert saved(tmp_path, WEIGHTS) != saved(tmp_path, other)


def test_lists_keep_their_order(tmp_path: Path) -> None:
    one, two = WEIGHTS.values()
    assert saved(tmp_path, [one, two]) != saved(tmp_path, [two, one])


def test_safetensors_are_read(tmp_path: Path) -> None:
    files = pytest.importorskip("safetensors.torch")
    files.save_file(WEIGHTS, tmp_path / "f.safetensors")
    assert digest_of_file(tmp_path / "f.safetensors", tmp_path) == saved(tmp_path, WEIGHTS)
    (tmp_path / "f.safetensors").write_bytes(b"no such file")
    with pytest.raises(DataError, match="not a file of safetensors"):
        digest_of_file(tmp_path / "f.safetensors", tmp_path)


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has not written"):
        digest_of_file(tmp_path / "nothing.pt", tmp_path)
    with pytest.raises(DataError, match="no tensors"):
        saved(tmp_path, {"step": 3})
    with pytest.raises(DataError, match="with tensors alone"):
        saved(tmp_path, {"path": tmp_path, "w": WEIGHTS["b"]})
    (tmp_path / "torn.pt").write_bytes((tmp_path / "f.pt").read_bytes()[:50])
    with pytest.raises(DataError, match=r"not a file of torch\.save"):
        digest_of_file(tmp_path / "torn.pt", tmp_path)


SILENT = """
import time
from deepvm.lab import SampleLog
log = SampleLog()
for step in range(20):
    log.step(step, [step], 0.5)
    time.sleep(0.01)
"""


@pytest.mark.system
def test_a_file_of_another_training_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script never writes one; the current folder, which each run gets a copy of, has one."""
    (tmp_path / "silent.py").write_text(SILENT)
    torch.save({"weights": torch.zeros(3)}, tmp_path / "final.pt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="the script has not written this file of final parameters"):
        certify(Subject(tmp_path / "silent.py", final="final.pt"), kills=1)
    assert (tmp_path / "final.pt").exists()


def test_a_file_elsewhere_is_refused_if_it_is_there(tmp_path: Path) -> None:
    """It is the user's: nobody removes it."""
    script, final = tmp_path / "silent.py", tmp_path / "final.pt"
    script.write_text(SILENT)
    torch.save({"weights": torch.zeros(3)}, final)
    subject = Subject(script, ["{out}"], final=str(final))
    with pytest.raises(RequestError, match="before the script starts"):
        subject.prepare(tmp_path / "run")
    assert final.exists()


def test_a_missing_file_is_told_with_what_is_there(tmp_path: Path) -> None:
    """Newest first: what the run has written comes before what was copied."""
    for age, name in enumerate(["e", "d", "c", "b", "a"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "final.pt").touch()
    with pytest.raises(DataError) as raised:
        digest_of_file(tmp_path / "nosuch.pt", tmp_path)
    assert (
        str(raised.value)
        == f"nosuch.pt: the script has not written this file of final parameters; in {tmp_path},"
        " the folder of its run, there are sub/final.pt, e, d, c, b and 1 more"
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"its run, there is no file: .*\{out\}"):
        digest_of_file(empty / "nosuch.pt", empty)
