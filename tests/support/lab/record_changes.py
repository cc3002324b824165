"""Changes to the files of a run, and what the gates say of it then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deepvm.lab.audit.gates import GATES, verdicts
from deepvm.lab.records import Records
from support.lab.made_runs import CONFIG, Row, change_document, change_lines, row, steps, strike


def judge(folder: Path) -> dict[str, str]:
    """What is wrong at each gate that fails."""
    found = verdicts(Records.read(folder))
    assert list(found) == list(GATES)
    return {gate: why for gate, why in found.items() if why}


Change = Callable[[Path], object]


def lines_of(rank: int, change: Callable[[list[Row]], list[Row]]) -> Change:
    return lambda folder: change_lines(folder, f"rank_{rank}.jsonl", change)


def document(name: str, change: Callable[[Row], None]) -> Change:
    return lambda folder: change_document(folder, name, change)


def updated(rows: list[Row], step: int, attempt: int, **values: object) -> list[Row]:
    for one in steps(rows, step):
        if one["attempt"] == attempt:
            one.update(values)
    return rows


def last_attempt(key: str, value: object) -> Change:
    return document("supervisor.json", lambda found: found["attempts"][-1].update({key: value}))


def all_lines(change: Callable[[Row], Row]) -> Change:
    """Change each line of both ranks."""

    def both(folder: Path) -> None:
        for rank in (0, 1):
            lines_of(rank, lambda rows: [change(one) for one in rows])(folder)

    return both


def checkpoints(change: Callable[[list[Row]], list[Row]]) -> Change:
    return lambda folder: change_lines(folder, "checkpoint_rank0.jsonl", change)


def events_of(rank: int, change: Callable[[list[Row]], list[Row]]) -> Change:
    return lambda folder: change_lines(folder, f"worker_{rank}.jsonl", change)


def all_rows(change: Callable[[list[Row]], list[Row]]) -> Change:
    """Change the logs of both ranks."""
    return lambda folder: [lines_of(rank, change)(folder) for rank in (0, 1)]


def goes_on(number: int, first: int) -> Change:
    """An attempt goes on from another step, and all but the checkpoints say so."""

    def change(folder: Path) -> None:
        document("supervisor.json", lambda d: d["attempts"][number].update(resumed_step=first))(
            folder
        )
        for rank in (0, 1):

            def anew(rows: list[Row], rank: int = rank) -> list[Row]:
                done = max(x["global_step"] for x in rows if x["attempt"] == number)
                own = [row(CONFIG, step, rank, 2, number) for step in range(first, done + 1)]
                older, newer = (
                    [x for x in rows if (x["attempt"] - number) * sign > 0] for sign in (-1, 1)
                )
                return [*older, *own, *newer]

            lines_of(rank, anew)(folder)
            events_of(
                rank,
                lambda rows: [
                    {**x, "step": first}
                    if x["event"] == "restored" and x["attempt"] == number
                    else x
                    for x in rows
                ],
            )(folder)

    return change


def struck(
    folder: Path,
    fault: str,
    *,
    target: str = "worker",
    launcher: str = "forkserver",
    **changes: object,
) -> None:
    """The first failure becomes another one; ``changes``: of its attempt."""
    planned = strike(fault, 12, target=target)
    change_document(folder, "config.json", lambda d: d["strikes"].__setitem__(0, planned))
    change_document(folder, "config.json", lambda d: d.update(launcher=launcher))
    facts = {"struck": {planned["key"]: 1049.9}, "causes": [planned["key"]], **changes}
    change_document(folder, "supervisor.json", lambda d: d["attempts"][0].update(facts))
    if launcher == "torchrun":
        change_document(folder, "supervisor.json", lambda d: d["attempts"][1].update(exits=[1, 1]))


def note_the_end(folder: Path, rank: int, word: str) -> None:
    """The last event of a rank in the first attempt becomes another one."""

    def change(rows: list[Row]) -> list[Row]:
        rows[3]["event"] = word
        return rows

    events_of(rank, change)(folder)
