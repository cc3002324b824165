"""``deepvm sweep``: the best cluster of every budget in a range, for several policies."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from deepvm.cli import options as o


def sweep(
    pw: Annotated[
        str, typer.Option("--pw", metavar="LOW:HIGH:STEP", help="Budgets in $/h: 0:10:0.1, or a comma-separated list.")
    ],
    catalog: o.CatalogName = o.DEFAULT_CATALOG,
    region: o.Region = "",
    profile: o.Profile = "",
    checkpoint_size: o.CheckpointSize = "300MB",
    buffers: o.Buffers = "2",
    objective: o.ObjectiveName = "throughput",
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Only deepvm, noscale, cost-first or performance-first; may be repeated. All unless given.",
        ),
    ] = [],  # noqa: B006
    architecture: o.Architectures = [],  # noqa: B006
    speedup: o.Speedup = None,
    gpu: o.Gpus = [],  # noqa: B006
    instance_type: o.InstanceTypes = [],  # noqa: B006
    exclude: o.Exclude = [],  # noqa: B006
    memory_node: o.MemoryNodes = [],  # noqa: B006
    max_nodes: o.MaxNodes = "255",
    quota: o.QuotaFile = None,
    output: Annotated[
        Literal["table", "csv", "json", "yaml"], typer.Option("--output", "-o", help="How to print the rows.")
    ] = "table",
    plot: Annotated[
        str, typer.Option("--plot", metavar="FILE", help="Also draw Figure 7 as .png or .svg (needs the plot extra).")
    ] = "",
) -> None:
    """Answer a whole range of budgets for the four policies of the paper (Figure 7).

    Example: deepvm sweep --pw 0:10:0.1 --catalog simulated -o csv
    """
    import sys
    from pathlib import Path

    from deepvm.planner.sweep import ALL_POLICIES, parse_budgets
    from deepvm.planner.sweep import sweep as run
    from deepvm.reports import documents
    from deepvm.reports import sweeps as report

    budgets = parse_budgets(pw)
    if plot:
        from deepvm.reports.pictures import draw_sweep, picture_format

        picture_format(Path(plot))  # a wrong ending is said before the work, not after it
    found = o.open_catalog(catalog, region, profile)
    rows = run(
        found,
        budgets,
        tuple(dict.fromkeys(policy)) or ALL_POLICIES,
        checkpoint_size=checkpoint_size,
        buffers=buffers,
        objective=objective,
        architecture=architecture,
        speedup=speedup,
        gpu=gpu,
        instance_type=instance_type,
        exclude=exclude,
        memory_node=memory_node,
        max_nodes=max_nodes,
        quotas=o.open_quotas(quota, found),
    )
    if plot:
        draw_sweep(rows, Path(plot), catalog_name=found.name, eflops_unit=found.eflops_unit)
        o.note(f"drew {plot}")
    if output == "csv":
        sys.stdout.write(documents.to_csv(report.HEADER, report.csv_rows(rows)))
    elif output == "table":
        report.print_rows(rows)
    else:
        document = report.document(rows, found, objective)
        sys.stdout.write(documents.to_json(document) if output == "json" else documents.to_yaml(document))
    for name in dict.fromkeys(r.policy.value for r in rows):
        if not any(r.recommendation for r in rows if r.policy.value == name):
            o.note(f"nothing is feasible for policy {name} at any of these budgets; 'deepvm recommend' says why")
