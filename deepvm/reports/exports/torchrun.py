"""torchrun: host files to fill in and a script that starts the training on each VM.

The agents meet on an on-demand VM, which is not preempted in the middle of the training: the anchor
of Single-Anchor, or the first memory node of Tiering, which then holds PyTorch's store without
training itself.
"""

from __future__ import annotations

import shlex

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import ANCHOR, MEMORY, TRAINING, Plan, PlannedGroup
from deepvm.reports.exports import survival
from deepvm.reports.exports.base import (
    RENDEZVOUS_PORT,
    Export,
    ExportFile,
    ExportOptions,
    comment,
    header,
)

OPTIONS = frozenset({"command", *survival.OPTIONS})
CLOUDS: frozenset[str] = frozenset()

_NO_LIMIT = "Spot prices move; these files start no VMs and limit no prices."
HOSTS, MEMORY_HOSTS, SCRIPT, TOKEN = "hostfile", "memory-hosts", "launch.sh", "token"


def render(plan: Plan, options: ExportOptions) -> Export:
    """``hostfile``, ``memory-hosts`` where there are memory nodes, and ``launch.sh``, which calls torchrun.

    Raises:
        RequestError: VMs cannot have deepvm.
    """
    slots = plan.training.gpus_per_vm
    # The VM on which all meet stands first.
    training = sorted(
        (g for g in plan.groups if g.role != MEMORY), key=lambda g: g.market is not Market.ON_DEMAND
    )
    files = [ExportFile(HOSTS, _hosts(plan, training, f" slots={slots}" if slots else ""))]
    names = HOSTS
    if plan.memory is not None:
        names = f"{HOSTS} and {MEMORY_HOSTS}"
        files.append(
            ExportFile(MEMORY_HOSTS, _hosts(plan, [g for g in plan.groups if g.role == MEMORY], ""))
        )
    files += [
        ExportFile(SCRIPT, _script(plan, options, names), executable=True),
        *survival.carried(options),
    ]
    notes = [f"to fill in: the addresses in {names}"]
    if survival.keepers(plan) is not None:
        notes.append(f"then, once: ./{SCRIPT} token, before this folder is copied to the VMs")
    if not options.command:
        notes.append("pass the training command to ./launch.sh, or use --command")
    if not slots:
        notes.append(
            "the plan does not say how many GPUs a VM has: torchrun counts them (--nproc-per-node"
            " gpu)"
        )
    return Export(tuple(files), (*notes, *survival.notes(plan, options, carries=True)))


def _hosts(plan: Plan, groups: list[PlannedGroup], slots: str) -> str:
    lines = comment(
        [
            *header(plan, _NO_LIMIT),
            (
                "One VM per line: replace each <...> by a private address or host name; the first"
                " is the rendezvous host."
            ),
        ]
    )
    for group in groups:
        lines += comment([f"{group}"])
        lines += "".join(f"<{group.role}-{i}>{slots}\n" for i in range(1, group.count + 1))
    return lines


def _script(plan: Plan, options: ExportOptions, names: str) -> str:
    meeting, given = plan.rendezvous, shlex.join(options.words)
    return (
        "#!/usr/bin/env bash\n"
        + comment([*header(plan, _NO_LIMIT), "", *_usage(meeting, names, optional=bool(given))])
        + _TOP.format(port=RENDEZVOUS_PORT, hosts=MEMORY_HOSTS if meeting.role == MEMORY else HOSTS)
        + _survival(plan, options)
        + _HOST_FLAG[meeting.role]
        + (f"if [ $# -eq 0 ]; then\n  set -- {given}\nfi\n" if given else _NO_COMMAND)
        + survival.torchrun(plan)
        + survival.RUN
    )


def _survival(plan: Plan, options: ExportOptions) -> str:
    """Token, memory nodes, and what the trainers know of them."""
    group, text = survival.keepers(plan), ""
    token, nodes = (
        f"$here/{TOKEN}",
        HOSTS if group is None or group.role == ANCHOR else MEMORY_HOSTS,
    )
    first = "exit" if group is not None and group.role == ANCHOR else ""
    hosts = f"""awk '!/^[[:space:]]*(#|$)/ {{ print $1; {first} }}' "$here/{nodes}\""""
    if group is not None:
        text += _TOKEN.format(token=token)
    text += survival.install(options, folder="$here")
    if group is not None:
        text += survival.serving(plan, options, token)
        text += _STORE if group.role == MEMORY else _BESIDE
    return text + survival.environment(plan, options, token, hosts) + "\n"


def _usage(meeting: PlannedGroup, names: str, *, optional: bool) -> list[str]:
    command = " [train.py ARGUMENTS ...]" if optional else " train.py ARGUMENTS ..."
    once = f"run ./{SCRIPT} token once, " if meeting.role in (MEMORY, ANCHOR) else ""
    lines = [f"Fill in {names}, {once}copy this folder to every VM, and start on each:"]
    if meeting.role == MEMORY:
        lines += [
            (
                f"memory node 1 ({meeting.instance_type}): ./{SCRIPT} rendezvous, needs PyTorch but"
                " no GPU, runs until it is stopped;"
            ),
            *([f"further memory nodes: ./{SCRIPT} memory-node;"] if meeting.count > 1 else []),
            f"VMs that train: ./{SCRIPT}{command}.",
        ]
    elif meeting.role == ANCHOR:
        lines += [
            f"the on-demand VM, first in {HOSTS}: ./{SCRIPT} anchor{command};",
            f"spot VMs: ./{SCRIPT}{command}.",
        ]
    else:
        lines.append(f"every VM: ./{SCRIPT}{command}.")
        if meeting.market is Market.SPOT:
            lines.append(
                "All VMs are spot: when the first is preempted, the training stops and has to be"
                " started again."
            )
    lines += [
        "Variables: RENDEZVOUS_PORT, RENDEZVOUS_ID; MIN_NODES to go on with fewer VMs while some"
        " are missing; JOIN_TIMEOUT_S, how long to wait for them; MAX_RESTARTS, how often failed"
        " workers are started again; DEEPVM_PACKAGE, what pip installs; DEEPVM_JOB, DEEPVM_TIERS;"
        " MEMORY_PORT, MEMORY_SIZE of memory nodes."
    ]
    return lines


# A line that still holds a placeholder is refused: torchrun would wait ten minutes for a host of
# that name.
_TOP = """set -euo pipefail

here="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
port="${{RENDEZVOUS_PORT:-{port}}}"

host="$(awk '!/^[[:space:]]*(#|$)/ {{ print $1; exit }}' "$here/{hosts}")"
case "$host" in
  "" | *"<"*)
    echo "$here/{hosts}: fill in the addresses of the VMs first" >&2
    exit 2
    ;;
esac

"""

_TOKEN = """token="{token}"
if [ "${{1:-}}" = token ]; then
  [ -e "$token" ] || (umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > "$token")
  exit 0
fi
if [ ! -s "$token" ]; then
  echo "$token: missing; run $0 token once, and copy it to all VMs" >&2
  exit 2
fi
chmod 600 "$token"
"""

# What ends first ends the other: somebody has to look.
_STORE = (
    """if [ "${1:-}" = rendezvous ] || [ "${1:-}" = memory-node ]; then
  serve
  if [ "$1" = rendezvous ]; then
    """
    + survival.STORE
    + """  fi
  wait -n
  exit 1
fi
"""
)

_BESIDE = """if [ "${1:-}" = anchor ]; then
  serve
fi
"""

# On whose VM the store is: torchrun would else guess it from the address, and guess wrong behind a
# second network card.
_HOST_FLAG = {
    ANCHOR: (
        """is_host=false
if [ "${1:-}" = anchor ]; then
  is_host=true
  shift
fi
where=",is_host=$is_host"

"""
    ),
    MEMORY: 'where=",is_host=false"\n\n',
    TRAINING: 'where=""\n\n',
}

_NO_COMMAND = """if [ $# -eq 0 ]; then
  echo "usage: $0 train.py ARGUMENTS ..." >&2
  exit 2
fi
"""
