"""The end of a failed script's output: its error and its own frames come first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deepvm.jobs.agent.tracebacks import own_frames_first

CODE = Path("/machine/agent/code")
TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules"
DEEP = [
    "epoch 3",
    "Traceback (most recent call last):",
    '  File "<frozen runpy>", line 88, in _run_code',
    '  File "/machine/deepvm/jobs/agent/warm.py", line 134, in main',
    '    runpy.run_path(first, run_name="__main__")',
    '  File "train.py", line 8, in <module>',
    "    main()",
    f'  File "{CODE}/models/net.py", line 3, in forward',
    "    return self.layer(x)",
    "           ^^^^^^^^^^^^^",
    f'  File "{TORCH}/module.py", line 1778, in _wrapped_call_impl',
    "    return self._call_impl(*args, **kwargs)",
    f'  File "{TORCH}/linear.py", line 134, in forward',
    "    return F.linear(input, self.weight, self.bias)",
    "           ^^^^^^^^",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x2 and 3x4)",
]
SHORT = [
    "epoch 3",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x2 and 3x4)",
    "  train.py, line 8, in <module>",
    "    main()",
    "  models/net.py, line 3, in forward",
    "    return self.layer(x)",
    "  raised in torch/nn/modules/linear.py, line 134, in forward"
    " (4 frames of libraries are left out)",
]


def test_the_error_and_the_scripts_frames_come_first() -> None:
    assert own_frames_first(DEEP, CODE) == SHORT


def test_each_rank_marks_its_lines() -> None:
    marked = [DEEP[0], *(f"[rank3]: {line}" for line in DEEP[1:])]
    assert own_frames_first(marked, CODE) == SHORT


def test_of_several_tracebacks_the_last_counts() -> None:
    during = ["", "During handling of the above exception, another exception occurred:", ""]
    found = own_frames_first([*DEEP[:-1], "KeyError: 1", *during, *DEEP[1:]], CODE)
    assert found[-6:] == SHORT[1:]


def test_an_error_of_many_lines_and_what_follows() -> None:
    more = [f"CUDA says {number}" for number in range(20)]
    found = own_frames_first([*DEEP, *more], CODE)
    assert found[1:11] == [DEEP[-1], *more[:9]] and found[-11:] == more[9:]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Killed"],
        ["Traceback (most recent call last):"],
        ["Traceback (most recent call last):", '  File "train.py", line 8, in <module>'],
        [DEEP[1], *DEEP[10:]],  # no frame of the script
        [
            DEEP[1],
            '  File "/machine/agent/code/.venv/lib/site-packages/a.py", line 1, in f',
            "E: x",
        ],
    ],
)
def test_without_a_traceback_of_the_script_lines_stay(lines: list[str]) -> None:
    assert own_frames_first(lines, CODE) == lines


def test_a_long_output_is_cut() -> None:
    lines = [str(number) for number in range(1000)]
    assert own_frames_first(lines, CODE) == lines[-40:]
    assert len(own_frames_first([*lines, *DEEP], CODE)) == 5 + len(SHORT) - 1


def test_a_frame_in_the_script_has_nothing_left_out() -> None:
    found = own_frames_first([*DEEP[1:2], *DEEP[5:7], "ValueError: x"], CODE)
    assert found == ["ValueError: x", *SHORT[2:4]]


def test_what_python_prints_is_understood(tmp_path: Path) -> None:
    script = "import json\ndef load():\n    return json.loads('{')\nload()\n"
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    lines = own_frames_first(done.stderr.splitlines(), tmp_path)
    assert lines[0].startswith("json.decoder.JSONDecodeError: Expecting property name")
    own = ["  train.py, line 4, in <module>", "    load()", "  train.py, line 3, in load"]
    assert lines[1:4] == own and "decoder.py, line" in lines[-1]


def test_lines_of_a_frame_are_no_error() -> None:
    """A recursion is repeated, and Python 3.13 marks each line of a call."""
    repeated = "  [Previous line repeated 996 more times]"
    call = ["    main(", "    ~~~~^", "        3,", "        ^^"]
    found = own_frames_first([DEEP[1], DEEP[5], *call, repeated, "ValueError: x"], CODE)
    assert found == ["ValueError: x", SHORT[2], call[0], call[2], repeated]
