"""``deepvm recommend`` and ``deepvm explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from deepvm.cli import options as o

if TYPE_CHECKING:
    from deepvm.planner.explain import WhyNot
    from deepvm.planner.recommend import Recommendations

NOTHING_FEASIBLE = 3


def recommend(
    pw: o.Budget,
    catalog: o.CatalogName = o.DEFAULT_CATALOG,
    region: o.Region = "",
    profile: o.Profile = "",
    checkpoint_size: o.CheckpointSize = "300MB",
    buffers: o.Buffers = "2",
    objective: o.ObjectiveName = "throughput",
    policy: o.Policy = "deepvm",
    architecture: o.Architectures = [],  # noqa: B006  typer copies defaults, and None would hide the list type
    speedup: o.Speedup = None,
    gpu: o.Gpus = [],  # noqa: B006
    instance_type: o.InstanceTypes = [],  # noqa: B006
    exclude: o.Exclude = [],  # noqa: B006
    memory_node: o.MemoryNodes = [],  # noqa: B006
    max_nodes: o.MaxNodes = "255",
    quota: o.QuotaFile = None,
    top: o.Top = "3",
    solver: o.Solver = "ilp",
    time_limit: o.TimeLimit = "60",
    output: o.Output = "table",
    explain: Annotated[
        str,
        typer.Option(
            "--explain",
            metavar="TYPE",
            autocompletion=o.complete_type,
            help="Also answer: why is this type not in the best cluster?",
        ),
    ] = "",
) -> None:
    """Rank the clusters that train fastest for a budget.

    Example: deepvm recommend --pw 3
    """
    from deepvm.planner.recommend import recommend as rank

    found = o.open_catalog(catalog, region, profile)
    answer = rank(
        found,
        pw,
        checkpoint_size=checkpoint_size,
        buffers=buffers,
        objective=objective,
        policy=policy,
        architecture=architecture,
        speedup=speedup,
        gpu=gpu,
        instance_type=instance_type,
        exclude=exclude,
        memory_node=memory_node,
        max_nodes=max_nodes,
        quotas=o.open_quotas(quota, found),
        top=top,
        solver=solver,
        time_limit_s=time_limit,
    )
    why = None
    if explain:
        from deepvm.planner.explain import why_not

        why = why_not(answer.catalog, answer.request, explain)
    _print(answer, why, output)
    if not answer.configurations:
        raise typer.Exit(NOTHING_FEASIBLE)


def _print(answer: Recommendations, why: WhyNot | None, output: str) -> None:
    import sys
    from datetime import date

    from deepvm.reports import documents
    from deepvm.reports import recommendations as report

    today = date.today()
    if output in ("json", "yaml"):
        document = report.document(answer, why)
        sys.stdout.write(documents.to_json(document) if output == "json" else documents.to_yaml(document))
    elif output == "csv":
        sys.stdout.write(documents.to_csv(*report.csv_rows(answer)))
    elif answer.configurations:
        report.print_report(answer, why, today, wide=output == "wide")
        return
    if answer.infeasible is not None:
        o.say(report.sentence(answer.infeasible))
    o.note(report.source_line(answer.catalog, today))
    if why is not None and output not in ("json", "yaml"):
        o.note(why.verdict)


def explain(
    name: Annotated[
        str, typer.Argument(metavar="TYPE", autocompletion=o.complete_type, help="A type of the catalogue.")
    ],
    pw: o.Budget,
    catalog: o.CatalogName = o.DEFAULT_CATALOG,
    region: o.Region = "",
    profile: o.Profile = "",
    checkpoint_size: o.CheckpointSize = "300MB",
    buffers: o.Buffers = "2",
    objective: o.ObjectiveName = "throughput",
    policy: o.Policy = "deepvm",
    architecture: o.Architectures = [],  # noqa: B006
    speedup: o.Speedup = None,
    gpu: o.Gpus = [],  # noqa: B006
    instance_type: o.InstanceTypes = [],  # noqa: B006
    exclude: o.Exclude = [],  # noqa: B006
    memory_node: o.MemoryNodes = [],  # noqa: B006
    max_nodes: o.MaxNodes = "255",
    quota: o.QuotaFile = None,
    output: Annotated[
        Literal["table", "json", "yaml"], typer.Option("--output", "-o", help="How to print the answer.")
    ] = "table",
) -> None:
    """Answer "why not this type?" with its best cluster and how far that is from the winner.

    Example: deepvm explain g5.xlarge --pw 3
    """
    import sys

    from deepvm.errors import RequestError
    from deepvm.planner.explain import explain as ask
    from deepvm.reports import documents
    from deepvm.reports import recommendations as report

    found = o.open_catalog(catalog, region, profile)
    try:
        why = ask(
            found,
            pw,
            name,
            checkpoint_size=checkpoint_size,
            buffers=buffers,
            objective=objective,
            policy=policy,
            architecture=architecture,
            speedup=speedup,
            gpu=gpu,
            instance_type=instance_type,
            exclude=exclude,
            memory_node=memory_node,
            max_nodes=max_nodes,
            quotas=o.open_quotas(quota, found),
        )
    except RequestError as error:
        # Here the name is an argument of its own; under `recommend` it is the value of --explain.
        raise RequestError("TYPE", error.value, error.allowed) if error.option == "explain" else error from None
    if output == "table":
        report.print_why(why)
    else:
        document = {"schema_version": report.EXPLAIN_VERSION, **report.explanation(why)}
        sys.stdout.write(documents.to_json(document) if output == "json" else documents.to_yaml(document))
