"""``deepvm memory-node``: run a server that holds checkpoints in memory, and show its status."""

from __future__ import annotations

import logging
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from deepvm.cli.output import Output, print_as, text
from deepvm.cli.parameters import flag, group, opt
from deepvm.core.units import format_bytes, parse_bytes
from deepvm.errors import CheckpointError, OptionMismatchError, RequestError
from deepvm.jobs.agent.process_group import caught

if TYPE_CHECKING:
    from deepvm.checkpoint.network.client import Token
    from deepvm.checkpoint.network.endpoint import Address, Endpoint
    from deepvm.checkpoint.node.server import Node

log = logging.getLogger(__name__)
app = group(
    "Keep checkpoints in the memory of a machine that is not preempted, and write them to disk from"
    " there."
)

TOKEN_FILE = opt("", "Token of the node; default: the file in DEEPVM_TOKEN_FILE.", "FILE")


@app.command("serve", short_help="Run a memory node until SIGTERM or SIGINT.")
def serve(
    token_file: str = opt(..., "Secret shared with the trainers, such as 64 hex digits.", "FILE"),
    memory: str = opt("1GiB", "Memory for all checkpoints, such as 512MiB or 6GiB.", "SIZE"),
    persist: str = opt(
        "", "Write checkpoints there: file:///mnt/ckpt, s3://, gs:// or az://bucket/prefix.", "URL"
    ),
    shared: bool = flag("--shared-folder", "Other nodes write their parts to --persist, too."),
    listen: str = opt(
        "127.0.0.1:7070", "Port 0: any free one; mpi: all in one mpirun.", "HOST:PORT|mpi"
    ),
    keep: int = opt(2, "Newest checkpoints of each job to keep in --persist.", "N"),
    keep_every: int = opt(0, "Also keep one checkpoint per so many steps.", "STEPS"),
    connections: int = opt(512, "Connection limit; a rank has 3.", "N"),
    drain_timeout: float = opt(60.0, "On shutdown, the longest wait for the disk.", "SECONDS"),
    weak_token: bool = flag("--allow-weak-token", "Accept short or world-readable tokens."),
    tls_cert: str = opt("", "Certificate for TLS.", "FILE"),
    tls_key: str = opt("", "Key of the certificate.", "FILE"),
    metrics: str = opt("", "Prometheus finds the status there, without a token.", "HOST:PORT"),
) -> None:
    """Run a memory node until SIGTERM or SIGINT.

    Prints one line, 'listening on HOST:PORT', when it is ready.

    With --listen mpi it is one of the processes that mpirun starts, and ends when all the others
    have ended; 'mpirun --with-ft ulfm' lets it outlive killed ones.

    Example: deepvm memory-node serve --memory 6GiB --persist file:///mnt/ckpt --token-file token
    """
    from deepvm.checkpoint.network.endpoint import MpiEndpoint
    from deepvm.checkpoint.node.server import Node, NodeSettings

    if listen == "mpi":
        if certificate := tls_cert or tls_key:
            reason = "does not go with --listen mpi, which cannot speak TLS"
            raise OptionMismatchError("tls_cert", certificate, reason)
        endpoint: Endpoint = MpiEndpoint.here()
    else:
        allowed = "HOST:PORT or mpi; --tls-cert and --tls-key make it speak TLS"
        endpoint = _plain(listen, "listen", allowed)
    statistics = None
    if metrics:
        statistics = _plain(metrics, "metrics", "HOST:PORT, such as 127.0.0.1:9100")
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form)
    settings = NodeSettings(
        listen=endpoint,
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
        metrics=statistics,
    )
    node = Node(settings)
    _allow_files(connections)
    _serve(node)


@app.command("status")
def status(
    node: str = opt(..., "The node; tcps://HOST:PORT for TLS.", "HOST:PORT"),
    token_file: str = TOKEN_FILE,
    output: Output = "table",
) -> None:
    """Show what a memory node holds, and its counters.

    Example: deepvm memory-node status --node 10.0.0.5:7070 --token-file token
    """
    from deepvm.checkpoint.network.client import node_status
    from deepvm.checkpoint.network.endpoint import Address

    counters = node_status(Address.parse(node, "node"), _shared_token(token_file))
    print_as(output, text("memory_node", node=counters), lambda: counters)


@app.command("token", short_help="Print a token that is valid for one job only.")
def job_token(
    job: str = opt(..., "The job that the token is for.", "NAME"), token_file: str = TOKEN_FILE
) -> None:
    """Print a token, derived from the node's, that is valid for one job only.

    Give it to that job's trainers.

    Example: (umask 077; deepvm memory-node token --job resnet-7 --token-file token >
    resnet-7.token)
    """
    sys.stdout.write(_shared_token(token_file).of_job(job).to_text() + "\n")


def _plain(text: str, option: str, allowed: str) -> Address:
    from deepvm.checkpoint.network.endpoint import Address

    address = Address.parse(text, option)
    if text != str(address):
        raise RequestError(option, text, allowed)
    return address


def _shared_token(file: str) -> Token:
    from deepvm.checkpoint.network.client import read_token, token_from_environment

    if file:
        return read_token(file)
    return token_from_environment()


def _serve(node: Node) -> None:
    received: list[int] = []
    with caught((signal.SIGTERM, signal.SIGINT), received.append):
        sys.stdout.write(f"listening on {node.start()}\n")
        sys.stdout.flush()
        while not received and not node.deserted():
            time.sleep(0.1)
        left = node.stop(hurry=lambda: len(received) > 1)
    if left:
        lost = f"{left} complete checkpoints did not reach the disk"
        raise CheckpointError(f"{lost} before --drain-timeout")


def _token(file: str, weak: bool) -> bytes:
    from deepvm.checkpoint.network.client import read_token, weak_allowed

    try:
        token = read_token(file, weak=False, allowing="--allow-weak-token")
    except RequestError as error:
        if not weak_allowed(weak or None):
            raise
        token = read_token(file, weak=True)
        log.warning("%s; accepted, because weak tokens are allowed", error)
    if token.job:
        allowed = f"the node's own token, and not that of job {token.job}"
        raise RequestError("token_file", file, allowed)
    return token.secret


def _memory(text: str) -> int:
    from deepvm.core.cluster.memory_nodes import room_of_system
    from deepvm.io.host_info import machine_memory

    # A bare number is bytes here; the other options refuse small ones.
    size = parse_bytes(int(text) if text.isascii() and text.isdigit() else text, "memory")
    total = machine_memory()
    if total is None:
        return size
    if size > total:
        has = f"{format_bytes(total)}, all that this machine or its control group has"
        raise RequestError("memory", text, f"at most {has}")
    room = room_of_system(total)  # the part that plans count on
    if size > room:
        fits = format_bytes(room)
        log.warning("--memory %s leaves too little for the system: use %s", text, fits)
    return size


def _allow_files(connections: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 3 * connections + 64  # a socket, a file, and the memory of a trainer here
    if hard != resource.RLIM_INFINITY:
        need = min(need, hard)
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
