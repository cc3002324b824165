"""``deepvm traces deadline``: what it costs to meet a deadline with spot VMs, on recorded histories of them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from deepvm.cli.output import TableJsonCsv, check_plot, note, print_csv, print_document, say
from deepvm.cli.progress import Progress


def deadline(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Traces, or folders of them.", show_default=False)
    ],
    work: Annotated[str, typer.Option(metavar="HOURS", help="On one machine; or a time: 90min.")] = "48h",
    slack: Annotated[
        str, typer.Option(metavar="NUMBERS", help="The deadline is (1 + slack) x work; several with commas.")
    ] = "0.05,0.1,0.2,0.5,1",
    policies: Annotated[
        str, typer.Option(metavar="NAMES", help="Separated by commas: greedy, uniform-progress, on-demand.")
    ] = "greedy,uniform-progress",
    price_ratio: Annotated[
        float, typer.Option(metavar="NUMBER", help="The spot price over the on-demand price.")
    ] = 0.33,
    restart: Annotated[
        str, typer.Option(metavar="TIME", help="From the request for a machine until training goes on.")
    ] = "300s",
    save_every: Annotated[
        str, typer.Option(metavar="TIME", help="Work between two saves; 0: every moment is safe, at no cost.")
    ] = "0",
    save: Annotated[str, typer.Option(metavar="TIME", help="How long training stands still for a save.")] = "0",
    backup: Annotated[str, typer.Option(metavar="TIME", help="From then until the version is durable.")] = "0",
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Machines that a job needs at once.  [default: the largest count in each file]"),
    ] = None,
    starts: Annotated[
        int, typer.Option(metavar="N", help="Moments at which the job starts, spread over each trace.")
    ] = 50,
    foresight: Annotated[
        bool,
        typer.Option(
            "--foresight",
            help="Also the least that any policy could cost. Half a minute a start where the gap between ticks and "
            "--restart have a small common divisor, such as 32 s and 300 s: use fewer --starts.",
        ),
    ] = False,
    plot: Annotated[str, typer.Option(metavar="FILE", help="Draw the costs as well: a .png or .svg.")] = "",
    output: TableJsonCsv = "table",
) -> None:
    """Replay jobs with a deadline: spot where there is some, on-demand in time where there is not.

    greedy waits for spot until the last moment; uniform-progress buys on-demand whenever the job falls behind.

    Example: deepvm traces deadline traces/ --work 48h --slack 0.05,0.1,0.2,0.5,1 --price-ratio 0.33 --restart 300
    """
    check_plot(plot)
    from deepvm.core.units import parse_hours
    from deepvm.reports.simulation import deadlines as report
    from deepvm.simulator.sweeps import seconds
    from deepvm.simulator.traces.deadline_replay import DeadlineJob, replay_traces
    from deepvm.simulator.traces.trace import read_traces

    job = DeadlineJob(
        work_s=parse_hours(work, "work"),
        restart_s=seconds(restart, "restart"),
        save_every_s=seconds(save_every, "save_every"),
        save_s=seconds(save, "save"),
        backup_s=seconds(backup, "backup"),
        price_ratio=price_ratio,
    )
    names = [name.strip() for name in policies.split(",") if name.strip()]
    traces = read_traces(files, note)
    with _Foresight() as seen:
        found = replay_traces(
            traces,
            job,
            _numbers(slack),
            names,
            nodes=nodes,
            starts=starts,
            foresight=foresight,
            note=note,
            say=say,
            progress=seen.advance,
        )
    if output == "json":
        print_document(report.document(found, job))
    elif output == "csv":
        print_csv(report.HEADER, report.rows_of(found))
    else:
        report.print_deadlines(found, job)
    if plot:
        from deepvm.reports.pictures import save_picture

        save_picture(report.deadlines_figure(found, job), Path(plot))


class _Foresight(ExitStack):
    """How far the bound is; its size is known when it begins."""

    _shown: Progress | None = None

    def advance(self, count: int, total: int) -> None:
        """So many more starts, of so many."""
        if self._shown is None:
            self._shown = self.enter_context(Progress(total, "starts of the bound"))
        self._shown.advance(count)


def _numbers(text: str) -> list[float]:
    from deepvm.errors import RequestError

    try:
        return sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise RequestError("slack", text, "numbers from 0, separated by commas, such as 0.1,0.5") from None
