"""A real sshd on a port of its own, for this user, that lets in the key of one test."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[int, Path]]:
    """Its port, and the key that it lets in; skips the test where it cannot be started."""
    program = shutil.which("sshd", path=_PATH)
    if program is None or shutil.which("ssh") is None:
        pytest.skip("needs ssh and sshd (packages openssh-client and openssh-server)")
    key, own = folder / "key", folder / "host_key"
    for file in (key, own):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    allowed = folder / "allowed"
    allowed.write_text((folder / "key.pub").read_text())
    allowed.chmod(0o600)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {own}\nAuthorizedKeysFile"
        f" {allowed}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin"
        " yes\nAcceptEnv *\nPidFile none\n"
    )
    log = folder / "sshd.log"
    process = subprocess.Popen([program, "-D", "-f", str(config), "-E", str(log)])
    try:
        _await(process, port, log)
        yield port, key
    finally:
        process.terminate()
        process.wait(10)


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            said = log.read_text().strip() if log.exists() else ""
            pytest.skip(
                f"sshd does not start here: {said.splitlines()[-1] if said else 'it says nothing'}"
            )
        time.sleep(0.05)
