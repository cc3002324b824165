"""The commands of ``deepvm``, each loaded when it is used: ``--help`` and one command cost nothing of the others."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True)
class Entry:
    """A command, or a group of commands, without loading it.

    Attributes:
        name: what the user types. help: its line in ``deepvm --help``.
        module: where it is, below ``deepvm.cli``. attribute: a function, or a :class:`typer.Typer` for a group.
        configured: whether files and the environment may set its options, see :mod:`deepvm.cli.configured`.
    """

    name: str
    help: str
    module: str
    attribute: str
    configured: bool = False


COMMANDS = (
    Entry("recommend", "Rank the clusters that train fastest for a budget.", "plan.recommend", "recommend", True),
    Entry("explain", "Say why a type is not in the best cluster.", "plan.recommend", "explain", True),
    Entry("sweep", "Answer a whole range of budgets for four policies.", "plan.sweep", "sweep", True),
    Entry("catalog", "Refresh, list, show, compare, validate and convert catalogs.", "catalog.group", "app"),
    Entry("simulate", "Train under preemption, before you pay: time and bill.", "simulate.simulate", "simulate"),
    Entry("export", "Write a plan for SkyPilot, EC2 Fleet, Terraform or torchrun.", "plan.export", "export"),
    Entry("profile", "Measure your own machines: eFLOPS, speed-up, saturation.", "profile.profile_group", "app"),
    Entry("tables", "List, show, compare, import and export what you measured.", "profile.tables", "app"),
    Entry("memory-node", "Keep checkpoints in the memory of a machine that stays.", "checkpoint.memory_node", "app"),
    Entry("ckpt", "List, verify, thin out, restore and measure checkpoints.", "checkpoint.ckpt", "app"),
    Entry("traces", "Show histories of spot machines, fit their lives, replay saves.", "simulate.traces", "app"),
    Entry("config", "Show the settings from the environment and from files.", "config", "app"),
    Entry("doctor", "Check what live prices need: credentials, permissions, quotas.", "catalog.doctor", "doctor", True),
    Entry("help", "Show the help of a command.", "help", "help_of"),
)
"""In the order of ``deepvm --help``; a new command is one line here."""


def load(entry: Entry) -> Any:
    """The command as the option parser knows it."""
    found = getattr(import_module(f"deepvm.cli.{entry.module}"), entry.attribute)
    holder = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    holder.callback()(_nothing)  # without it, a holder of one command would be that command
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=entry.name)
    elif entry.configured:
        from deepvm.cli.configured import ConfiguredCommand

        holder.command(entry.name, cls=ConfiguredCommand)(found)
    else:
        holder.command(entry.name)(found)
    group: Any = typer.main.get_command(holder)
    return group.commands[entry.name]


class LazyGroup(TyperGroup):
    """The group ``deepvm``, which loads a command when it is asked for."""

    def __init__(self, **attributes: Any) -> None:
        """Know the names only; typer suggests them after a typing error."""
        super().__init__(**attributes)
        names: dict[str, Any] = dict.fromkeys(e.name for e in COMMANDS)
        self.commands = names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load one command; None when there is none of this name."""
        return next((load(e) for e in COMMANDS if e.name == cmd_name), None)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(e.name, e.help) for e in COMMANDS])


def _nothing() -> None:
    """The holder's own callback."""
