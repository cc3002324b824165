"""``deepvm traces``: histories of spot machines, the laws of their lives, and what saves would have cost on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepvm.cli.output import TableJsonCsv, check_plot, note, print_csv, print_document
from deepvm.cli.simulate.traces_deadline import deadline
from deepvm.errors import DataError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show histories of spot machines, fit laws to their lives, replay save policies on them.",
)
app.command("deadline", short_help="Replay jobs that must be done by a certain time.")(deadline)

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help='Traces, {"metadata": {"gap_seconds": 600}, "data": [1, 1, 0, ...]}, or folders of such .json files.',
        show_default=False,
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(metavar="N", help="Machines that a job needs at once.  [default: the largest count in each file]"),
]


@app.command(short_help="Show how long the lives of each trace are.")
def show(
    files: Files,
    nodes: Nodes = None,
    plot: Annotated[
        str, typer.Option(metavar="FILE", help="Draw availability, survival and fits as well: a .png or .svg.")
    ] = "",
    output: TableJsonCsv = "table",
) -> None:
    """Show how long each trace is, how often the machines were there, and how long they lived.

    Example: deepvm traces show us-west-2a_v100_1.json --plot trace.png
    """
    check_plot(plot)
    from deepvm.reports.simulation import traces as report
    from deepvm.simulator.traces.trace import check_nodes, pools_of, read_traces

    traces = read_traces(files, note)
    check_nodes(nodes)
    rows = report.show_rows(traces, nodes)
    if output == "json":
        print_document(report.show_document(rows))
    elif output == "csv":
        print_csv(list(rows[0]), [list(row.values()) for row in rows])
    else:
        report.print_show(rows)
    if plot:
        from deepvm.reports.pictures import save_picture
        from deepvm.simulator.traces.lifetime_fit import fit_lives

        pools = pools_of(traces, nodes=nodes, say=note)
        try:
            fits = fit_lives(pools)
        except DataError as error:
            fits = ()
            note(f"no laws are drawn: {error}")
        save_picture(report.traces_figure(traces, pools, fits), Path(plot))


@app.command(short_help="Fit laws to all lives together.")
def fit(
    files: Files,
    nodes: Nodes = None,
    each: Annotated[bool, typer.Option("--each", help="Also fit each trace by itself.")] = False,
    output: TableJsonCsv = "table",
) -> None:
    """Fit exponential, Weibull, Lomax and lognormal lives to all traces together, and say which describes them best.

    Lives are known up to half a gap, and the last of a trace only up to its end; the likelihood takes that in.

    Example: deepvm traces fit traces/ --each
    """
    from deepvm.reports.simulation import traces as report
    from deepvm.simulator.traces.lifetime_fit import FEWEST, fit_lives
    from deepvm.simulator.traces.trace import pools_of, read_traces

    traces = read_traces(files, note)
    pools = pools_of(traces, nodes=nodes, say=note)
    fits = fit_lives(pools)
    own = [fit_lives([pool]) if pool.preemptions >= FEWEST else () for pool in pools] if each else []
    if output == "json":
        print_document(report.fit_document(pools, fits, own))
    elif output == "csv":
        print_csv(report.FIT_HEADER, report.fit_rows(pools, fits, own))
    else:
        report.print_fit(pools, fits, own, alone=all((nodes or trace.nodes) == 1 for trace in traces))


@app.command(short_help="Replay save policies: what saves and losses cost.")
def replay(
    files: Files,
    nodes: Nodes = None,
    policies: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Separated by commas: thesis, hazard, adaptive, young, daly, exact, auto, none, static:STEPS, "
            "every:TIME; best-fixed: the best interval of each trace in hindsight; emergency: a save at each "
            "preemption, and no other.",
        ),
    ] = "thesis,best-fixed,hazard,emergency",
    save: Annotated[
        str, typer.Option(metavar="TIMES", help="How long training stands still for a save, s; more with commas.")
    ] = "2.55,19.5,120",
    step: Annotated[str, typer.Option(metavar="TIME", help="One training step.")] = "4.6s",
    mttp: Annotated[
        str, typer.Option(metavar="TIME", help="Mean time to preemption before a trace has shown its own.")
    ] = "3h",
    output: TableJsonCsv = "table",
) -> None:
    """Replay save policies: what saves and lost work would have cost, each policy knowing only the past of the trace.

    Example: deepvm traces replay traces/ --policies thesis,hazard --save 2.55,19.5,120
    """
    from deepvm.core.units import parse_seconds
    from deepvm.reports.simulation import traces as report
    from deepvm.simulator.traces.replay import replay_all
    from deepvm.simulator.traces.trace import lives_of

    names = tuple(dict.fromkeys(name.strip() for name in policies.split(",")))
    pools = lives_of(files, nodes=nodes, say=note)
    step_s, mttp_s = parse_seconds(step, "step", bare=True), parse_seconds(mttp, "mttp", bare=True)
    found = replay_all(pools, names, _seconds(save), step_s=step_s, mttp_s=mttp_s)
    if output == "json":
        print_document(report.replay_document(pools, found, step_s=step_s, mttp_s=mttp_s))
    elif output == "csv":
        print_csv(report.REPLAY_HEADER, report.replay_rows(pools, found))
    else:
        report.print_replay(pools, found)


def _seconds(text: str) -> tuple[float, ...]:
    from deepvm.core.units import parse_seconds

    allowed = "times above 0 s, separated by commas, such as 2.55,19.5"
    return tuple(dict.fromkeys(parse_seconds(part, "save", bare=True, allowed=allowed) for part in text.split(",")))
