"""``deepvm memory-node``: the memory that a training's checkpoints go to, and a look at it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepvm.cli.output import TableJson

if TYPE_CHECKING:
    from deepvm.checkpoint.network.endpoint import Endpoint
    from deepvm.checkpoint.node.server import Node

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Keep checkpoints in the memory of a machine that stays, and write them to disk behind it.",
)
_LOOK_S = 0.25
_OTHER_FILES = 64


@app.command("serve", short_help="Run a memory node until SIGTERM or SIGINT.")
def serve(
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="The secret that trainers must know, such as 64 digits.")
    ],
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="For all versions together, such as 512MiB or 6GiB.")
    ] = "1GiB",
    persist: Annotated[
        str,
        typer.Option("--persist", metavar="URL", help="For complete versions: file:///mnt/ckpt or s3://bucket/prefix."),
    ] = "",
    shared: Annotated[
        bool,
        typer.Option("--shared-folder", help="Other nodes, with other parts of the versions, write there as well."),
    ] = False,
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT|mpi", help="Where; port 0 picks one. mpi: one mpirun has all."),
    ] = "127.0.0.1:7070",
    keep: Annotated[int, typer.Option("--keep", help="Newest versions of each job that stay there.")] = 2,
    keep_every: Annotated[
        int, typer.Option("--keep-every", metavar="STEPS", help="Also keep one version for each so many steps.")
    ] = 0,
    connections: Annotated[int, typer.Option("--connections", help="The most at a time; a rank has 3.")] = 512,
    drain_timeout: Annotated[
        float, typer.Option("--drain-timeout", metavar="SECONDS", help="At the end, the longest wait for the disk.")
    ] = 60.0,
    weak_token: Annotated[
        bool,
        typer.Option("--allow-weak-token", help="Take a token of less than 16 bytes, or that others here may read."),
    ] = False,
    tls_cert: Annotated[str, typer.Option("--tls-cert", metavar="FILE", help="A certificate, to speak TLS.")] = "",
    tls_key: Annotated[str, typer.Option("--tls-key", metavar="FILE", help="Its key.")] = "",
) -> None:
    """Run a memory node until SIGTERM or SIGINT; prints one line, 'listening on HOST:PORT', when it is ready.

    With --listen mpi it is one of the processes that mpirun starts, and ends when all the others have; 'mpirun
    --with-ft ulfm' lets it outlive killed ones.

    Example: deepvm memory-node serve --memory 6GiB --persist file:///mnt/ckpt --token-file token
    """
    import logging

    from deepvm.checkpoint.network.endpoint import Address, MpiEndpoint
    from deepvm.checkpoint.node.server import Node, NodeSettings
    from deepvm.errors import RequestError

    place: Endpoint
    if listen == "mpi":
        if tls_cert or tls_key:
            raise RequestError("tls_cert", tls_cert or tls_key, "none with --listen mpi, which cannot speak TLS")
        place = MpiEndpoint.here()
    else:
        place = address = Address.parse(listen, "listen")
        if listen != str(address):
            raise RequestError("listen", listen, "HOST:PORT or mpi; --tls-cert and --tls-key make it speak TLS")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    settings = NodeSettings(
        listen=place,
        token=_token(token_file, weak_token),
        memory_bytes=_memory(memory),
        persist=persist,
        keep=keep,
        keep_every=keep_every,
        connections=connections,
        drain_s=drain_timeout,
        certificate=Path(tls_cert) if tls_cert else None,
        key=Path(tls_key) if tls_key else None,
        shared=shared,
    )
    node = Node(settings)
    _allow_files(connections)
    _serve(node)


@app.command("status")
def status(
    node: Annotated[str, typer.Option("--node", metavar="HOST:PORT", help="The node; tcps://HOST:PORT for TLS.")],
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="The secret.  [default: the file in DEEPVM_TOKEN_FILE]")
    ] = "",
    output: TableJson = "table",
) -> None:
    """Show what a memory node holds, and how it has fared.

    Example: deepvm memory-node status --node 10.0.0.5:7070 --token-file token
    """
    import json

    from deepvm.checkpoint.network.client import node_status
    from deepvm.checkpoint.network.endpoint import Address
    from deepvm.checkpoint.network.token import read_token, token_from_environment

    token = read_token(token_file) if token_file else token_from_environment()
    found = node_status(Address.parse(node, "node"), token)
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if output == "json" else _table(found))


@app.command("token", short_help="Print a token that is good for one job alone.")
def job_token(
    job: Annotated[str, typer.Option("--job", metavar="NAME", help="The job whose versions it is good for.")],
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="The node's.  [default: the file in DEEPVM_TOKEN_FILE]")
    ] = "",
) -> None:
    """Print a token that is good for the versions of one job alone, derived from the node's; its trainers get this one.

    Example: (umask 077; deepvm memory-node token --job resnet-7 --token-file token > resnet-7.token)
    """
    from deepvm.checkpoint.network.token import read_token, token_from_environment

    token = read_token(token_file) if token_file else token_from_environment()
    sys.stdout.write(token.of_job(job).to_text() + "\n")


def _serve(node: Node) -> None:
    """Run a node until it is told to end."""
    import signal
    import threading

    from deepvm.errors import CheckpointError

    told: list[int] = []
    end = threading.Event()

    def on_signal(number: int, _: Any) -> None:
        told.append(number)
        end.set()

    # Behind `&` in a script SIGINT is ignored: there the keys are meant for somebody else.
    heard = [n for n in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in heard}
    try:
        sys.stdout.write(f"listening on {node.start()}\n")
        sys.stdout.flush()
        while not end.wait(_LOOK_S) and not node.deserted():
            pass
        left = node.stop(hurry=lambda: len(told) > 1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if left:
        raise CheckpointError(f"{left} complete versions had not reached the disk when the time for it was over")


def _token(file: str, weak: bool) -> bytes:
    """The node's token; a warning for a weak one."""
    import logging

    from deepvm.checkpoint.network.token import read_token, weak_allowed
    from deepvm.errors import RequestError

    try:
        found = read_token(file, weak=False, allowing="--allow-weak-token")
    except RequestError as error:
        if not weak_allowed(weak or None):
            raise
        found = read_token(file, weak=True)
        logging.getLogger(__name__).warning("%s; it is taken all the same", error)
    if found.job:
        raise RequestError("token_file", file, f"the node's own token, and not that of job {found.job}")
    return found.secret


def _memory(text: str) -> int:
    """Bytes for versions, which this machine must have: what it has not would be found out by killing the node."""
    import logging

    from deepvm.core.cluster.memory_nodes import room_of_system
    from deepvm.core.units import format_bytes
    from deepvm.errors import RequestError
    from deepvm.io.host_info import machine_memory

    size, most = _bytes(text), machine_memory()
    if most is not None and size > most:
        raise RequestError(
            "memory", text, f"at most {format_bytes(most)}, all that this machine or its control group has"
        )
    if most is not None and size > (room := room_of_system(most)):  # what plans count on
        advice = f"some as well; leave it at most {format_bytes(room)}" if room else "all of it; take a larger one"
        logging.getLogger(__name__).warning(
            "--memory %s is %.0f %% of the %s that this machine or its control group has; the node and the system need "
            "%s",
            text,
            100 * size / most,
            format_bytes(most),
            advice,
        )
    return size


def _allow_files(connections: int) -> None:
    """Let this process have as many open files as its connections may need, where the system lets it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 2 * connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        need = min(need, hard)
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def _bytes(text: str) -> int:
    from deepvm.core.units import parse_bytes

    # A bare number is bytes here; the other options refuse small ones.
    return parse_bytes(int(text) if text.isascii() and text.isdigit() else text, "memory")


def _table(found: Any) -> str:
    """The status for people."""
    from deepvm.core.units import format_bytes

    memory, flush, counts = found["memory"], found["flush"], found["counts"]
    received = format_bytes(counts["received_bytes"])
    rows = [
        ("uptime", f"{found['uptime_s']:.0f} s{', stopping' if found['stopping'] else ''}"),
        ("memory", f"{format_bytes(memory['allocated_bytes'])} in slots, of {format_bytes(memory['limit_bytes'])}"),
        ("connections", f"{found['connections']} of {found['connections_limit']}, refused {_refused(found)}"),
        ("received", f"{counts['complete']} versions, {received}; no room for {counts['busy']}"),
        ("store", found["persist"] or "none: versions live in memory only"),
    ]
    if found["persist"]:
        if found.get("volatile"):
            rows.append(("", "it lies in that machine's memory: nothing there is durable"))
        rows.append(("written", f"{flush['flushed']}, the last in {flush['last_s']:.3f} s; {flush['waiting']} waiting"))
        if flush["last_error"]:
            rows.append(("failed", f"{flush['failed']} times, the last: {flush['last_error']}"))
    lines = [f"{name:<12} {text}" for name, text in rows]
    for version in sorted(found["versions"], key=lambda v: (v["job"], -v["version"])):
        where = "on disk too" if version["durable"] else version["state"]
        lines.append(f"{version['job']:<12} version {version['version']}, {format_bytes(version['bytes'])}, {where}")
    return "\n".join(lines) + "\n"


def _refused(found: Any) -> str:
    """How many peers, and why."""
    words = {"unproven": "without the token", "full": "with all connections taken"}
    return ", ".join(f"{count} {words.get(kind, kind)}" for kind, count in found["refused"].items()) or "0"
