"""``deepvm traces``: recorded spot VMs, their lifetimes, and replays of saves and deadlines."""

from functools import partial

from deepvm.cli.long_runs import Progress
from deepvm.cli.output import Output, draw, note, plot_of, print_as, print_named, say, text
from deepvm.cli.parameters import SAVE_POLICIES, arg, flag, group, opt
from deepvm.core.options import words
from deepvm.core.units import parse_hours, parse_seconds
from deepvm.errors import DataError, RequestError

app = group(
    "Show spot traces, fit lifetime distributions, replay save policies and deadlines on them."
)

FILES = arg(
    "FILE...",
    'Traces, {"metadata": {"gap_seconds": 600}, "data": [1, 1, 0, ...]}, or folders of such'
    " .json files.",
    show_default=False,
)
NODES = opt(None, "VMs that a job needs at once; default: the largest count in each file.", "N")


@app.command(short_help="Replay jobs with a deadline.")
def deadline(
    files: list[str] = FILES,
    work: str = opt("48h", "Work on one VM in hours, or a time: 90min.", "HOURS"),
    slack: str = opt("0.05,0.1,0.2,0.5,1", "Deadlines: (1 + slack) x work.", "NUMBERS"),
    policies: str = opt("greedy,uniform-progress", "greedy, uniform-progress, on-demand.", "NAMES"),
    price_ratio: float = opt(0.33, "Spot price over on-demand price.", "NUMBER"),
    restart: str = opt("300s", "From the request for a VM until training continues.", "TIME"),
    save_every: str = opt("0", "Work between two saves; 0: continuous and free of cost.", "TIME"),
    save: str = opt("0", "How long a save blocks training.", "TIME"),
    backup: str = opt("0", "From the end of the save until the checkpoint is durable.", "TIME"),
    nodes: int | None = NODES,
    starts: int = opt(50, "Job starts, spread over each trace.", "N"),
    foresight: bool = flag(
        "--foresight", "Also the least possible cost of any policy; can be slow."
    ),
    plot: str = plot_of("the costs"),
    output: Output = "table",
) -> None:
    """Replay jobs with a deadline: spot while it is available, on-demand in time where it is not.

    greedy waits for spot until the last moment; uniform-progress buys on-demand whenever the job
    falls behind.

    Example: deepvm traces deadline traces/ --work 48h --slack 0.05,0.1,0.2,0.5,1 --price-ratio 0.33
    --restart 300
    """
    from deepvm.reports.simulation import traces as report
    from deepvm.simulator.traces.deadline_replay import DeadlineJob, replay_traces
    from deepvm.simulator.traces.trace import read_traces

    seconds = partial(parse_seconds, bare="s", zero=True)
    job = DeadlineJob(
        work_s=parse_hours(work, "work"),
        restart_s=seconds(restart, "restart"),
        save_every_s=seconds(save_every, "save_every"),
        save_s=seconds(save, "save"),
        backup_s=seconds(backup, "backup"),
        price_ratio=price_ratio,
    )
    try:
        slacks = sorted({float(part) for part in slack.split(",")})
    except ValueError:
        allowed = "numbers from 0, separated by commas, such as 0.1,0.5"
        raise RequestError("slack", slack, allowed) from None
    names = list(filter(None, words(policies, "policies")))
    with Progress(0, "starts of the bound") as progress:
        found = replay_traces(
            read_traces(files, note),
            job,
            slacks,
            names,
            nodes=nodes,
            starts=starts,
            foresight=foresight,
            note=note,
            say=say,
            progress=progress.advance,
        )
    table = partial(report.print_deadlines, found, job)
    values = {"job": job, "rows": found}
    print_named(output, table, "traces-deadline", values, partial(report.deadline_rows, found))
    draw(plot, lambda: report.deadlines_figure(found, job))


@app.command(short_help="Show availability and lifetimes of each trace.")
def show(
    files: list[str] = FILES,
    nodes: int | None = NODES,
    plot: str = plot_of("availability, survival and fits"),
    output: Output = "table",
) -> None:
    """Show how long each trace is, how often the VMs were available, and how long they lived.

    Example: deepvm traces show us-west-2a_v100_1.json --plot trace.png
    """
    from deepvm.reports.simulation import traces as report
    from deepvm.simulator.traces.trace import check_nodes, pools_of, read_traces

    traces = read_traces(files, note)
    check_nodes(nodes)
    rows = report.show_rows(traces, nodes)
    print_named(output, text("traces_show", also="-o csv", traces=rows), "traces", {"traces": rows})
    if plot:
        from deepvm.simulator.traces.lifetime_fit import fit_lives

        pools = pools_of(traces, nodes=nodes, say=note)
        try:
            fits = fit_lives(pools)
        except DataError as error:
            fits = ()
            note(f"no laws are drawn: {error}")
        draw(plot, lambda: report.traces_figure(traces, pools, fits))


@app.command(short_help="Fit distributions to all lifetimes together.")
def fit(
    files: list[str] = FILES,
    nodes: int | None = NODES,
    each: bool = flag("--each", "Also fit each trace separately."),
    output: Output = "table",
) -> None:
    """Fit exponential, Weibull, Lomax and lognormal lifetimes to all traces together.

    Shows which fits best. A lifetime is known up to half a gap, and the last of a trace is
    censored; the likelihood accounts for both.

    Example: deepvm traces fit traces/ --each
    """
    from deepvm.reports.simulation import traces as report
    from deepvm.simulator.traces.lifetime_fit import FEWEST, fit_lives
    from deepvm.simulator.traces.trace import pools_of, read_traces

    traces = read_traces(files, note)
    pools = pools_of(traces, nodes=nodes, say=note)
    fits = fit_lives(pools)
    own = []
    if each:
        own = [fit_lives([pool]) if pool.preemptions >= FEWEST else () for pool in pools]
    alone = all((nodes or trace.nodes) == 1 for trace in traces)
    document = partial(report.fit_document, pools, fits, own)
    table = partial(report.print_fit, pools, fits, own, alone=alone)
    print_as(output, table, document, lambda: report.fit_csv(document()))


@app.command(short_help="Replay save policies: what saves and losses cost.")
def replay(
    files: list[str] = FILES,
    nodes: int | None = NODES,
    policies: str = opt(
        "thesis,best-fixed,hazard,emergency",
        f"Comma-separated: {SAVE_POLICIES}; best-fixed: the best interval in hindsight;"
        " emergency: only a save at "
        "each preemption.",
        "NAMES",
    ),
    save: str = opt(
        "2.55,19.5,120", "How long a save blocks training, s; comma-separated.", "TIMES"
    ),
    step: str = opt("4.6s", "One training step.", "TIME"),
    mttp: str = opt("3h", "Mean time to preemption before a trace has shown its own.", "TIME"),
    output: Output = "table",
) -> None:
    """Replay save policies: what saves and lost work would have cost.

    Each policy knows only the past of the trace.

    Example: deepvm traces replay traces/ --policies thesis,hazard --save 2.55,19.5,120
    """
    from deepvm.reports.simulation import traces as report
    from deepvm.simulator.traces.replay import replay_all
    from deepvm.simulator.traces.trace import lives_of

    names = tuple(dict.fromkeys(words(policies, "policies")))
    pools = lives_of(files, nodes=nodes, say=note)
    step_s = parse_seconds(step, "step", bare="s")
    mttp_s = parse_seconds(mttp, "mttp", bare="s")
    allowed = "times above 0 s, separated by commas, such as 2.55,19.5"
    saves = [parse_seconds(part, "save", bare="s", allowed=allowed) for part in save.split(",")]
    found = replay_all(pools, names, tuple(dict.fromkeys(saves)), step_s=step_s, mttp_s=mttp_s)
    document = report.replay_document(pools, found, step_s=step_s, mttp_s=mttp_s)
    table = partial(report.print_replay, pools, found)
    print_as(output, table, lambda: document, partial(report.replay_csv, document))
