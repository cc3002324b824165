"""``deepvm jobs serve``: the jobs in a browser, live."""

import contextlib
import secrets
import threading

import typer

from deepvm.cli.output import note, warn
from deepvm.cli.parameters import opt
from deepvm.errors import DataError
from deepvm.io.threads import start_thread

_POLL_S = 5.0
_JOIN_TIMEOUT_S = 1.0


def serve(
    host: str = opt(
        "127.0.0.1",
        "Address to listen at; others than this machine's own are not encrypted.",
        "HOST",
    ),
    port: int = opt(0, "Port 0: any free one.", "N", min=0, max=65535),
) -> None:
    """Show the jobs of this user in a browser, live, until Ctrl-C.

    Prints the address, which contains the key: anyone who has it sees all jobs.

    The pages are read-only.

    Example: deepvm jobs serve --port 8800
    """
    from deepvm.jobs.history.history import History
    from deepvm.reports.web import site

    token = secrets.token_urlsafe(32)

    def ready(free_port: int) -> None:
        name = host
        if ":" in host:
            name = f"[{host}]"
        typer.echo(f"http://{name}:{free_port}/?token={token}")
        note("Ctrl-C ends it; on another machine, forward the port: ssh -L PORT:127.0.0.1:PORT")
        if host not in ("127.0.0.1", "::1", "localhost"):
            warn(
                "the pages are not encrypted: anyone who can read this network sees them, and"
                " the key"
            )

    over = threading.Event()
    follower = start_thread(_follow_heads, over)
    with History.reader() as history:
        try:
            site.serve(history, token, host, port, ready)
        except OSError as error:
            raise DataError(
                f"cannot listen at {host}:{port}: {error.strerror or error}; name another --port"
            ) from None
        finally:
            over.set()
            # SQLite in a thread while the interpreter ends is a segmentation fault
            follower.join(_JOIN_TIMEOUT_S)


def _follow_heads(over: threading.Event) -> None:
    from deepvm.cli.jobs.run import write_page
    from deepvm.errors import DeepVMError
    from deepvm.jobs.head.remote import refresh_all
    from deepvm.jobs.history.history import History
    from deepvm.jobs.submission import cloud_of

    with History.open() as history:
        while not over.is_set():
            with contextlib.suppress(DeepVMError, OSError):
                refresh_all(history, history.jobs(), cloud_of, lambda text: None, write_page)
            over.wait(_POLL_S)
