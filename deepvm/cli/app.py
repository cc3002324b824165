"""The commands of ``deepvm``, each loaded when it is used.

``--help`` and one command cost nothing of the others.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from deepvm.exporters.registry import SUMMARY


class Entry(NamedTuple):
    """A command, or a group of commands, that is not loaded yet.

    Attributes:
        help: its line in ``deepvm --help``. module: below ``deepvm.cli``. attribute: a function, or
            the app of a group.
        configured: whether files and the environment may set its options, see
            :mod:`deepvm.cli.settings`. context: settings of the option parser.
    """

    name: str
    help: str
    module: str
    attribute: str = "app"
    configured: bool = False
    context: dict[str, Any] | None = None


COMMANDS = (
    Entry(
        "recommend",
        "Rank the clusters that train fastest for a budget.",
        "plan.recommend",
        "recommend",
        True,
    ),
    Entry(
        "explain", "Explain why a type is not in the best cluster.", "plan.explain", "explain", True
    ),
    Entry(
        "gpus", "List GPUs: memory, prices, and how fast they train a model.", "plan.gpus", "gpus"
    ),
    Entry(
        "sweep",
        "Recommend for a range of budgets under four policies.",
        "plan.sweep",
        "sweep",
        True,
    ),
    Entry(
        "catalog", "Refresh, list, show, compare, validate and convert catalogs.", "catalog.group"
    ),
    Entry(
        "simulate",
        "Train under preemption, before you pay: time and bill.",
        "simulate.simulate",
        "simulate",
    ),
    Entry(
        "survive",
        "Estimate spot availability and time to first preemption.",
        "simulate.survive",
        "survive",
    ),
    Entry(
        "export",
        SUMMARY,
        "plan.export",
        "export",
    ),
    Entry(
        "run", "Run training on preemptible machines with automatic recovery.", "jobs.run", "run"
    ),
    Entry("jobs", "List, watch, save, stop and resume jobs of deepvm run.", "jobs.jobs_group"),
    Entry(
        "agent", "Run a command that saves before its machine is preempted.", "jobs.agent", "agent"
    ),
    Entry(
        "audit",
        "Certify that a training script resumes correctly after kills.",
        "lab.audit",
        "audit",
        context={"allow_interspersed_args": False},  # options after SCRIPT are the script's
    ),
    Entry("inject", "Inject preemptions into a running job.", "jobs.jobs_group", "inject"),
    Entry("history", "Show how long machines lived, by type, zone and market.", "jobs.history"),
    Entry(
        "profile",
        "Measure your own machines: eFLOPS, speed-up, saturation.",
        "profile.profile_group",
    ),
    Entry(
        "performance",
        "Predict how fast GPUs train a model, and check that.",
        "performance.performance_group",
    ),
    Entry("tables", "List, show, compare, import and export what you measured.", "profile.tables"),
    Entry(
        "memory-node",
        "Keep checkpoints in the memory of another machine.",
        "checkpoint.memory_node",
    ),
    Entry("ckpt", "List, verify, prune, restore and benchmark checkpoints.", "checkpoint.ckpt"),
    Entry("traces", "Show spot traces, fit lifetimes, replay save policies.", "simulate.traces"),
    Entry("lab", "Prove that training resumes correctly after failures.", "lab.lab_group"),
    Entry(
        "reproduce",
        "Recompute the papers' figures and compare.",
        "reproduce.reproduce",
        "reproduce",
    ),
    Entry("schema", "Print the JSON Schema of a document or a file.", "schema", "schema"),
    Entry("config", "Show the settings from the environment and from files.", "config"),
    Entry(
        "doctor",
        "Check what live prices need: credentials, permissions, quotas.",
        "catalog.doctor",
        "doctor",
        True,
    ),
    Entry(
        "help",
        "Show the help of a command or a topic, or list them.",
        "help.help_command",
        "help_of",
    ),
)
"""In the order of ``deepvm --help``; a new command is one line here."""


_EXAMPLE = re.compile(r"(Examples?: )?deepvm ")


def load(entry: Entry) -> Any:
    """The command as the option parser knows it."""
    loaded = getattr(import_module(f"deepvm.cli.{entry.module}"), entry.attribute)
    holder = typer.Typer(
        rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
    )
    if isinstance(loaded, typer.Typer):
        holder.add_typer(loaded, name=entry.name)
    elif entry.configured:
        from deepvm.cli.settings import ConfiguredCommand

        width = {"max_content_width": 100}
        holder.command(entry.name, cls=ConfiguredCommand, context_settings=width)(loaded)
    else:
        holder.command(entry.name, context_settings=entry.context)(loaded)
    # Not typer's get_command(), which would take a holder of one command apart.
    command = typer.main.get_group(holder).commands[entry.name]
    _keep_examples(command)
    return command


def _keep_examples(command: Any) -> None:
    """Show each example of a help text on one line, however narrow the terminal."""
    # People copy examples. A paragraph that starts with \b is not wrapped by the option parser.
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(
        f"\b\n{' '.join(p.split())}" if _EXAMPLE.match(p) else p for p in paragraphs
    )
    for subcommand in getattr(command, "commands", {}).values():
        _keep_examples(subcommand)


class LazyGroup(TyperGroup):
    """The group ``deepvm``, which loads a command when it is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Only the names: typer suggests them after a typing error.
        self.commands: dict[str, Any] = dict.fromkeys(e.name for e in COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load one command; None for an unknown name."""
        return next((load(e) for e in COMMANDS if e.name == cmd_name), None)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(e.name, e.help) for e in COMMANDS])
        if (ctx.obj or {}).get("topics"):  # as help_command sets it
            from deepvm.cli.help.topics import topics

            with formatter.section("Topics of 'deepvm help TOPIC'"):
                formatter.write_dl([(topic.name, topic.line) for topic in topics().values()])


app = typer.Typer(
    name="deepvm",
    cls=LazyGroup,
    no_args_is_help=True,
    # Plain help: rich's boxes are unreadable in a pipe, and loading them takes longer than
    # everything else.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Which cluster of spot and on-demand VMs trains my model fastest for this much money an"
        " hour?"
    ),
    epilog=(
        "Topics, such as budget, models, spot or prices: deepvm help. Exit codes: 0 success, 1"
        " other error, 2 wrong usage, 3 nothing feasible, 4 data missing or unreadable, 5 cloud or"
        " network, 130 interrupted, 141 broken pipe."
    ),
)


def _version(wanted: bool) -> None:
    if wanted:
        from deepvm import __version__

        typer.echo(f"deepvm {__version__}")
        raise typer.Exit


@app.callback()
def _globals(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
    debug: bool = typer.Option(
        False, "--debug", help="Show a traceback on errors; works anywhere."
    ),
) -> None:
    """Options that stand before the command."""
