"""The commands of ``deepvm``, each loaded when it is used."""

import re
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from deepvm.exporters.registry import SUMMARY


class Entry(NamedTuple):
    """A command or group that is not loaded yet; ``attribute`` of a module below ``deepvm.cli``."""

    name: str
    settable: str  # "*" if files and the environment may set its options
    module: str
    attribute: str
    help: str


# In the order of ``deepvm --help``: the name, with ``*`` if files and the environment may set its
# options (:mod:`deepvm.cli.settings`); the module, and ``:`` with what it has besides ``app``; help
_TABLE = f"""\
recommend* plan.recommend:recommend Rank the clusters that train fastest for a budget.
explain* plan.sweep:explain Explain why a type is not in the best cluster.
gpus performance.performance_group:gpus List GPUs: memory, prices, and how fast they train a model.
sweep* plan.sweep:sweep Recommend for a range of budgets under four policies.
catalog catalog.group Refresh, list, show, compare, validate and convert catalogs.
simulate simulate.simulate:simulate Train under preemption, before you pay: time and bill.
survive simulate.survive:survive Estimate spot availability and time to first preemption.
export plan.export:export {SUMMARY}
run jobs.run:run Run training on preemptible machines with automatic recovery.
jobs jobs.jobs_group List, watch, save, stop and resume jobs of deepvm run.
agent jobs.agent:agent Run a command that saves before its machine is preempted.
audit lab.lab_group:audit Certify that a training script resumes correctly after kills.
inject jobs.jobs_group:inject Inject preemptions into a running job.
history jobs.jobs_group:history_group Show how long machines lived, by type, zone and market.
profile profile.profile_group Measure your own machines: eFLOPS, speed-up, saturation.
performance performance.performance_group Predict how fast GPUs train a model, and check that.
tables profile.tables List, show, compare, import and export what you measured.
memory-node checkpoint.memory_node Keep checkpoints in the memory of another machine.
ckpt checkpoint.ckpt List, verify, prune, restore and benchmark checkpoints.
traces simulate.traces Show spot traces, fit lifetimes, replay save policies.
lab lab.lab_group Prove that training resumes correctly after failures.
reproduce reproduce.reproduce:reproduce Recompute the papers' figures and compare.
schema help.help_command:schema Print the JSON Schema of a document or a file.
config config Show the settings from the environment and from files.
doctor* catalog.doctor:doctor Check what live prices need: credentials, permissions, quotas.
help help.help_command:help_of Show the help of a command or a topic, or list them.
"""
_ENTRY = re.compile(r"(\S+?)(\*?) ([^ :]+)(?::(\S+))? (.*)")
COMMANDS = [Entry(*match.groups("app")) for match in _ENTRY.finditer(_TABLE)]
_EXAMPLE = re.compile(r"(Examples?: )?deepvm ")


def load(entry: Entry) -> Any:
    """The command as the option parser knows it."""
    loaded = getattr(import_module(f"deepvm.cli.{entry.module}"), entry.attribute)
    holder = typer.Typer(
        rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
    )
    if isinstance(loaded, typer.Typer):
        holder.add_typer(loaded, name=entry.name)
    elif entry.settable:
        from deepvm.cli.settings import ConfiguredCommand

        width = {"max_content_width": 100}
        holder.command(entry.name, cls=ConfiguredCommand, context_settings=width)(loaded)
    else:
        # Options after the script of an audit are the script's
        context = {"allow_interspersed_args": entry.name != "audit"}
        holder.command(entry.name, context_settings=context)(loaded)
    # Not typer's get_command(), which would take a holder of one command apart.
    command = typer.main.get_group(holder).commands[entry.name]
    _keep_examples(command)
    return command


def _keep_examples(command: Any) -> None:
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
        return next((load(e) for e in COMMANDS if e.name == cmd_name), None)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
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
