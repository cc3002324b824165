"""Options that several commands share, and how they become a request."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from deepvm.core.instances import Catalog, Quota

DEFAULT_CATALOG = "paper"


def _complete_catalog(incomplete: str) -> list[str]:
    from deepvm.catalog.store import embedded_names

    return [n for n in embedded_names() if n.startswith(incomplete)]


def complete_type(incomplete: str) -> list[str]:
    """Types of the default catalogue that begin so, for the shell."""
    from deepvm.catalog.store import load_catalog

    return [i.name for i in load_catalog(DEFAULT_CATALOG) if i.name.startswith(incomplete)]


def _complete_architecture(incomplete: str) -> list[str]:
    from deepvm.planner.architectures import REGISTRY

    return [n for n in REGISTRY if n.startswith(incomplete)]


Budget = Annotated[
    str, typer.Option("--pw", metavar="USD/H", help="Pricing willingness: the most to pay for the cluster, $/h.")
]
CatalogName = Annotated[
    str,
    typer.Option(
        "--catalog",
        metavar="NAME|FILE",
        autocompletion=_complete_catalog,
        help="Embedded catalogue, or a .json or .csv file of your own; see 'deepvm catalog'.",
    ),
]
Region = Annotated[
    str, typer.Option("--region", "-r", help="The region whose prices to use; a catalogue that lacks it is refused.")
]
Profile = Annotated[str, typer.Option("--profile", help="AWS profile; has no effect on embedded catalogues and files.")]
CheckpointSize = Annotated[
    str, typer.Option("--checkpoint-size", metavar="SIZE", help="Size of one checkpoint: 300MB, 0.3GB, 512MiB.")
]
Buffers = Annotated[str, typer.Option("--buffers", metavar="N", help="Checkpoints that a memory node must hold.")]
ObjectiveName = Annotated[
    Literal["throughput", "flopp", "cost-per-work"],
    typer.Option("--objective", help="What the best cluster is best at."),
]
Policy = Annotated[
    Literal["deepvm", "noscale", "cost-first", "performance-first"],
    typer.Option("--policy", help="DeepVM, or a baseline of the paper (section V-C1); the last two have no objective."),
]
Architectures = Annotated[
    list[str],
    typer.Option(
        "--architecture",
        metavar="NAME",
        autocompletion=_complete_architecture,
        help="Only this one, such as tiering; may be repeated. All unless given.",
    ),
]
Speedup = Annotated[
    Literal["hybrid", "ring", "measured"] | None,
    typer.Option("--speedup", help="Speed-up curve to use in place of the catalogue's default."),
]
Gpus = Annotated[list[str], typer.Option("--gpu", metavar="GLOB", help="Only these GPU models; may be repeated.")]
InstanceTypes = Annotated[
    list[str],
    typer.Option(
        "--instance-type",
        metavar="GLOB",
        autocompletion=complete_type,
        help="Only these types train, such as 'g4dn.*'; may be repeated.",
    ),
]
Exclude = Annotated[
    list[str],
    typer.Option(
        "--exclude", metavar="GLOB", autocompletion=complete_type, help="Never use these types; may be repeated."
    ),
]
MemoryNodes = Annotated[
    list[str],
    typer.Option(
        "--memory-node",
        metavar="GLOB",
        autocompletion=complete_type,
        help="Only these types hold checkpoints; may be repeated.",
    ),
]
MaxNodes = Annotated[str, typer.Option("--max-nodes", metavar="N", help="The most VMs that train in one cluster.")]
QuotaFile = Annotated[
    str | None,
    typer.Option(
        "--quota", metavar="FILE|none", help="Account limits in vCPUs, or none; the catalogue's unless given."
    ),
]
Top = Annotated[str, typer.Option("--top", metavar="N", help="How many configurations to rank.")]
Solver = Annotated[
    Literal["ilp", "frontier"],
    typer.Option("--solver", help="Integer program (HiGHS, or CBC), or exact enumeration: the same answer."),
]
TimeLimit = Annotated[
    str, typer.Option("--time-limit", metavar="SECONDS", help="Stop the integer program after this time.")
]
Output = Annotated[
    Literal["table", "wide", "json", "yaml", "csv"], typer.Option("--output", "-o", help="How to print the answer.")
]


def open_catalog(name: str, region: str, profile: str) -> Catalog:
    """Load a catalogue and make sure that it has the region.

    Raises:
        MissingDataError: the catalogue holds prices of another region.
        DataError: it cannot be found or read.
    """
    from deepvm.catalog.store import load_catalog
    from deepvm.errors import MissingDataError

    catalog = load_catalog(name)
    if region and region != catalog.region:
        has = f"it holds prices of {catalog.region}" if catalog.region else "its types are in no region"
        raise MissingDataError(f"catalogue {catalog.name} has no prices of region {region!r}: {has}")
    if profile:
        note(f"--profile {profile} has no effect: catalogue {catalog.name} is not read from AWS")
    return catalog


def open_quotas(name: str | None, catalog: Catalog) -> tuple[Quota, ...] | None:
    """None for the catalogue's own quotas, an empty tuple for ``none``, else those of a file."""
    if name is None:
        return None
    if name.lower() == "none":
        return ()
    from deepvm.catalog.store import load_quotas

    quotas = load_quotas(name)
    families = sorted({i.quota_family for i in catalog})
    for family in dict.fromkeys(q.family for q in quotas):
        if family not in families:
            note(f"{name}: no type of catalogue {catalog.name} counts against {family!r}, only {', '.join(families)}")
    return quotas


def say(text: str) -> None:
    """Say something that is not data: it goes to stderr, behind what was printed before."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")


def note(text: str) -> None:
    """Say something that a user may want to know."""
    say(f"Note: {text}")
