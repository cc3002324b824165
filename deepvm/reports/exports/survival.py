"""What an export adds to a plan so that its training survives: deepvm, a token, memory nodes, tiers, the agent.

The pieces are lines of bash. No secret is in any file: whoever starts the machines makes the token.
"""

from __future__ import annotations

from collections.abc import Iterator

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import ANCHOR, MEMORY, Plan, PlannedGroup
from deepvm.errors import RequestError
from deepvm.reports.exports.base import JOIN_TIMEOUT_S, ExportFile, ExportOptions

OPTIONS = frozenset({"job", "package", "persist"})
"""Options of every export that starts trainings."""
NODE_PORT = 7070
JOB = "training"
_NO_PACKAGE = "deepvm export --package says what to install, and DEEPVM_PACKAGE here"


def keepers(plan: Plan) -> PlannedGroup | None:
    """The machines that keep versions in their memory: the memory nodes, or else the anchors.

    None without either.
    """
    return next((g for role in (MEMORY, ANCHOR) for g in plan.groups if g.role == role), None)


def carried(options: ExportOptions) -> list[ExportFile]:
    """The wheel that VMs install, where they have no other way to the deepvm that runs here."""
    own = options.own
    return (
        [ExportFile(own.wheel_name, "", data=own.wheel)]
        if own.wheel and not options.package
        else []
    )


def install(options: ExportOptions, *, trains: bool = True, folder: str = "") -> str:
    """A line that installs deepvm, unless the image has it.

    ``DEEPVM_PACKAGE`` may name another release, or a file.

    ``trains``: whether it is for trainers, not for a memory node. ``folder``: where VMs have what
    is :func:`carried`, as bash reads it between double quotes.

    Raises:
        RequestError: nothing says what VMs could install, and a training is to start.
    """
    wanted = [*(["train"] if trains else []), *filter(None, [_library(options)])]
    extra = f"[{','.join(wanted)}]" if wanted else ""
    source = options.package or options.own.requirement(extra)
    if not source and folder and carried(options):
        source = f"{folder}/{options.own.wheel_name}{extra}"
    if not source and options.command:
        allowed = (
            "with --command what pip installs on the VMs, which cannot have the deepvm that runs"
            f" here, of {options.own.place}: a release such as 'deepvm[train]==0.1.0', the URL of a"
            " wheel, or git+https://HOST/NAME.git@REF; or --to torchrun or skypilot, which send it"
        )
        raise RequestError("package", "", allowed)
    value = f":-{source}" if source else f":?{_NO_PACKAGE}"
    return (
        "command -v deepvm > /dev/null || python3 -m pip install --quiet"
        f' "${{DEEPVM_PACKAGE{value}}}"\n'
    )


def _library(options: ExportOptions) -> str:
    """The extra that brings the library of the bucket.

    Empty for S3, which the base install knows.
    """
    scheme = options.persist.partition("://")[0]
    return scheme if scheme in ("gs", "az") else ""


def serve(plan: Plan, options: ExportOptions, token: str) -> str:
    """The command of a memory node, on a machine of its own or beside an anchor's trainers, which need memory, too."""
    group = keepers(plan)
    share = 80 if group is not None and group.role == MEMORY else 25
    size = f"""$(awk '/MemAvailable/ {{ printf "%dMiB", $2 * {share} / 102400 }}' /proc/meminfo)"""
    words = [
        f'deepvm memory-node serve --listen "0.0.0.0:${{MEMORY_PORT:-{NODE_PORT}}}"',
        f'--token-file "{token}" --memory "${{MEMORY_SIZE:-{size}}}"',
    ]
    if options.persist:
        several = group is not None and group.role == MEMORY and group.count > 1
        words.append(f'--persist "{options.persist}"{" --shared-folder" if several else ""}')
    return " \\\n  ".join(words)


def serving(plan: Plan, options: ExportOptions, token: str) -> str:
    """A function of bash that starts a memory node in the background, and ends it with the shell."""
    return _SERVE.format(serve=serve(plan, options, token).replace("\n", "\n  "))


def torchrun(plan: Plan) -> str:
    """The array ``command``: agent, torchrun and the shell's arguments.

    Reads ``$host``, ``$port`` and ``$where``.
    """
    count = plan.training_count
    # torchrun counts a VM's GPUs itself when the plan does not know them.
    return _COMMAND.format(
        count=count, processes=plan.training.gpus_per_vm or "gpu", patience=JOIN_TIMEOUT_S
    )


def environment(plan: Plan, options: ExportOptions, token: str, hosts: str) -> str:
    """Variables of the trainers; ``hosts``: a command that prints the addresses of the keepers, one a line."""
    lines = [f'export DEEPVM_JOB="${{DEEPVM_JOB:-{options.job or JOB}}}"']
    # Else a VM that takes another's place waits for the address of a store that the others publish
    # only once (PyTorch issues 111646 and 147064).
    lines.append("export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    if keepers(plan) is not None:
        lines.append(f'export DEEPVM_TOKEN_FILE="{token}"')
        joined = f'$({hosts} | sed "s/$/:${{MEMORY_PORT:-{NODE_PORT}}}/" | paste -sd, -)'
        lines.append(f'export DEEPVM_TIERS="${{DEEPVM_TIERS:-tcp://{joined}}}"')
    elif options.persist:
        lines.append(f'export DEEPVM_TIERS="${{DEEPVM_TIERS:-{options.persist}}}"')
    return "\n".join(lines) + "\n"


def notes(plan: Plan, options: ExportOptions, *, carries: bool = False) -> Iterator[str]:
    """What is missing, and what keeps the versions; ``carries``: the files contain what is :func:`carried`."""
    if not (options.package or options.own.pin or (carries and carried(options))):
        yield (
            f"the VMs cannot have the deepvm that runs here, of {options.own.place}: --package says"
            " what pip installs, unless the image has deepvm"
        )
    if _library(options):
        yield (
            f"the VMs need an identity that may write {options.persist}: no role or key is made"
            " for it"
        )
    group = keepers(plan)
    if group is None:
        if not options.persist and any(g.market is Market.SPOT for g in plan.groups):
            yield (
                "no VM of this plan is sure to stay, so nothing keeps its checkpoints: --persist"
                " s3://bucket/run does"
            )
    elif not options.persist:
        where = "memory node" if group.role == MEMORY else "anchor"
        yield (
            f"checkpoints are in the memory of the {where} alone; --persist s3://bucket/run writes"
            " them there, too"
        )


STORE = """python3 -c '
import signal, sys
from torch.distributed import TCPStore

store = TCPStore("localhost", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("rendezvous on port", sys.argv[1], flush=True)
signal.pause()
' "$port" &
"""
"""Holds PyTorch's store on ``$port``, in the background: the rendezvous of VMs that all may vanish."""

_SERVE = """serve() {{
  {serve} &
  trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT
  trap 'exit 143' TERM
  trap 'exit 130' INT
}}
"""

_COMMAND = """
command=(deepvm agent --metadata auto -- torchrun \\
  --nnodes "${{MIN_NODES:-{count}}}:{count}" \\
  --nproc-per-node {processes} \\
  --max-restarts "${{MAX_RESTARTS:-100}}" \\
  --rdzv-backend c10d \\
  --rdzv-id "${{RENDEZVOUS_ID:-deepvm}}" \\
  --rdzv-endpoint "$host:$port" \\
  --rdzv-conf "join_timeout=${{JOIN_TIMEOUT_S:-{patience}}}$where" \\
  "$@")
"""

RUN = """# A shell that waits for a memory node has to stay.
if [ -n "$(jobs -p)" ]; then
  "${command[@]}" &
  training=$!
  trap 'kill -TERM $training; wait $training; exit 143' TERM
  wait $training
  exit $?
fi
exec "${command[@]}"
"""
"""Runs ``command`` in the place of the shell, or beside the memory node that it has started."""
