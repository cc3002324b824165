"""Lines as the probe of an audit writes them, for trainings whose parameters are called w0, w1, ...
after each step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deepvm.lab.certify.attempt import Attempt, AttemptLog

Row = dict[str, Any]


def start(params: str, state: str, key: str = "k") -> Row:
    return {"kind": "start", "key": key, "params": params, "state": state, "n": 0, "time": 0.0}


def step(
    n: int,
    params: str,
    state: str,
    key: str = "k",
    *,
    buffers: str = "b",
    lr: float = 0.01,
    **random: str,
) -> Row:
    return {
        **{
            "kind": "step",
            "n": n,
            "key": key,
            "params": params,
            "state": state,
            "buffers": buffers,
            "time": float(n),
        },
        "groups": [{"lr": lr}],
        "random": {"torch": "t", "python": "p", **random},
    }


def train(last: int, *, after: int = 0) -> list[Row]:
    """Of an attempt that goes on after a step, as it should."""
    rows = [
        {**step(n - after, f"w{n}", f"s{n}"), "time": float(n)} for n in range(after + 1, last + 1)
    ]
    return [start(f"w{after}", f"s{after}" if after else ""), *rows]


def samples(ids: dict[int, list[int]], *, epoch: int = 0, loss: str = "") -> list[Row]:
    """By step, counted from 0: which samples it had.

    They are logged after the step, and before the next one.
    """
    return [
        {
            "kind": "samples",
            "global_step": n,
            "epoch": epoch,
            "sample_ids": list(map(str, ids[n])),
            "loss_hex": loss or f"l{n}",
            "time": n + 1.5,
        }
        for n in ids
    ]


def logged(rows: Iterable[Row]) -> AttemptLog:
    """Of rank 0."""
    found = list(rows)

    def of(kind: str) -> dict[int, list[Row]]:
        some = [row for row in found if row["kind"] == kind]
        return {0: some} if some else {}

    return AttemptLog(of("start"), of("step"), of("samples"), of("write").get(0, ()))


def attempt(number: int, rows: Iterable[Row], state: str = "ended", **more: Any) -> Attempt:
    return Attempt(number, state, 0, 1.0, logged(rows), **more)  # type: ignore[arg-type]
