"""``deepvm memory-node`` as a user meets it."""

from __future__ import annotations

import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from support.command import Run
from support.places import ROOT

from deepvm.checkpoint.network.client import Token, read_token, token_from_environment
from deepvm.checkpoint.network.endpoint import Address
from deepvm.checkpoint.node.server import NodeSettings
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.checkpoint.tiers.registry import open_store
from deepvm.checkpoint.tiers.s3 import S3Tier
from deepvm.cli.checkpoint import memory_node
from deepvm.cli.checkpoint.memory_node import _memory
from deepvm.errors import RequestError
from deepvm.io import host_info
from deepvm.reports.text import print_text

COMMAND = [sys.executable, "-m", "deepvm.cli.main", "memory-node"]
UNIT = ROOT / "scripts" / "deepvm-memory-node.service"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret-of-the-test\n")
    return path


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "memory-node")


def test_status_shows_sizes_in_the_unit_of_ckpt_ls(capsys: pytest.CaptureFixture[str]) -> None:
    """Powers of 1000.

    A version of 133.8 MiB in one table and of 140.25 MB in the other looked like two.
    """
    version = {
        "job": "job",
        "version": 3,
        "bytes": 140_250_000,
        "durable": True,
        "state": "complete",
    }
    found = {
        "uptime_s": 1.0, "stopping": False, "connections": 1, "connections_limit": 2,
        "refused": {}, "persist": None, "flush": {}, "versions": [version],
        "memory": {"allocated_bytes": 2**27, "limit_bytes": 6 * 2**30},
        "counts": {"complete": 1, "received_bytes": 999, "busy": 0},
    }  # fmt: skip
    print_text("memory_node", node=found)
    shown = capsys.readouterr().out
    assert "job          checkpoint 3, 140.25 MB, on disk too\n" in shown
    assert (
        "134.21 MB in slots, of 6.44 GB\n" in shown
        and "1 checkpoints, 999 B;" in shown
        and "iB" not in shown
    )


def test_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepvm.io.host_info.machine_memory", lambda: None)
    assert [_memory(t) for t in ("1GiB", "512MiB", "1.5 GiB", "2GB", "4096")] == [
        2**30,
        2**29,
        3 * 2**29,
        2 * 10**9,
        4096,
    ]
    for text in ("", "0", "GiB", "-1GiB", "1 parsec", "1e9", "nan", "1GiBx", "0.0000001MiB"):
        with pytest.raises(RequestError, match="memory"):
            _memory(text)


def test_stores() -> None:
    assert open_store("") is None
    for url in ("file:///mnt/a%20b", "file://localhost/mnt/a b"):
        assert cast(FileTier, open_store(url)).url == "file:///mnt/a b"
    assert cast(S3Tier, open_store("s3://bucket/run/")).url == "s3://bucket/run"
    for url in (
        "/mnt/ckpt",
        "file://mnt/ckpt",
        "s3:///run",
        "file:",
        "http://x/y",
        "file:///a%00b",
        "file://[/x",
    ):
        with pytest.raises(RequestError, match="persist"):
            open_store(url)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--listen", "nowhere"], "--listen"),
        (["--listen", "127.0.0.1:99999"], "--listen"),
        (["--memory", "plenty"], "--memory"),
        (["--drain-timeout", "-1"], "--drain-timeout"),
        (["--tls-cert", "cert.pem"], "--tls-key"),
        (["--tls-cert", "/none/cert.pem", "--tls-key", "/none/key.pem"], "--tls-cert"),
        (["--token-file", "/none/token"], "--token-file"),
    ],
)
def test_bad_values(run: Run, token: Path, words: list[str], named: str) -> None:
    code, out, err = run("serve", "--token-file", str(token), "--listen", "127.0.0.1:0", *words)
    assert (code, out) == (2, "") and f"{named}: " in err and "expected" in err


def test_the_token_is_required(run: Run) -> None:
    code, _, err = run("serve")
    assert code == 2 and "--token-file" in err


def test_more_memory_than_the_machine_has(
    run: Run, token: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["serve", "--token-file", str(token), "--listen", "127.0.0.1:0", "--memory"]
    code, out, err = run(*words, "900TiB")
    assert (
        (code, out) == (2, "")
        and "--memory" in err
        and "all that this machine or its control group has" in err
    )
    monkeypatch.setattr(memory_node, "_serve", lambda node: None)
    # The system and the node need as much of a small machine: of 4 GiB less the kernel's, a plan
    # counts on 2.76 GB.
    monkeypatch.setattr(host_info, "machine_memory", lambda: 3_780_000_000)
    for size, warned in (("2800MB", False), ("2803MB", True), ("3GB", True)):
        caplog.clear()
        assert run(*words, size)[0] == 0
        assert (f"--memory {size} leaves" in caplog.text) == warned
    assert "use 2.8 GB" in caplog.text
    monkeypatch.setattr(host_info, "machine_memory", lambda: 2**29)  # has no room at all
    assert run(*words, "16MiB")[0] == 0 and "--memory 16MiB leaves too little" in caplog.text
    # A large one has more to give, and a plan of this size knows it: 57.5 of 68.7 GB, of which 65.9
    # are its system's.
    monkeypatch.setattr(host_info, "machine_memory", lambda: 65_869_537_280)
    for size, warned in (("57.5GB", False), ("60GB", True)):
        caplog.clear()
        assert run(*words, size)[0] == 0
        assert (f"--memory {size} leaves" in caplog.text) == warned
    monkeypatch.setattr(host_info, "machine_memory", lambda: 2**30)
    code, _, err = run(*words, "1025MiB")
    assert code == 2 and "at most 1.07 GB" in err
    monkeypatch.setattr(host_info, "machine_memory", lambda: None)
    assert run(*words, "900TiB")[0] == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody on this machine may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("how", ["short", "open to others", "open to its group"])
def test_a_weak_token_is_refused(
    run: Run,
    open_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    """By the node, and by whoever goes to one; who knows better may say so."""
    monkeypatch.setattr(memory_node, "_serve", lambda node: None)
    token = open_folder / "token"
    token.touch(mode=0o600)
    token.write_text("x" * (15 if how == "short" else 64))
    if how != "short":
        token.chmod(0o644 if "others" in how else 0o660)
    cure = "openssl rand -hex 32" if how == "short" else f"chmod 600 {token}"
    serve = ["serve", "--token-file", str(token), "--listen", "127.0.0.1:0"]
    status = ["status", "--token-file", str(token), "--node", "127.0.0.1:9"]
    for words, allow in ((serve, "--allow-weak-token"), (status, "DEEPVM_ALLOW_WEAK_TOKEN=1")):
        code, out, err = run(*words)
        assert (code, out) == (2, "") and cure in err and allow in err, err
        assert token.read_text() not in err
    assert run(*serve, "--allow-weak-token")[0] == 0
    assert cure in caplog.text and token.read_text() not in caplog.text
    monkeypatch.setenv("DEEPVM_ALLOW_WEAK_TOKEN", "1")
    assert run(*serve)[0] == 0 and run(*status)[0] == 1
    monkeypatch.delenv("DEEPVM_ALLOW_WEAK_TOKEN")
    token.chmod(0o600)
    token.write_text("x" * 16)
    caplog.clear()
    assert run(*serve)[0] == 0 and caplog.text == ""


def test_a_token_in_a_folder_that_others_cannot_enter(run: Run, open_folder: Path) -> None:
    inner = open_folder / "inner"
    inner.mkdir(mode=0o700)
    token = inner / "token"
    token.write_text("x" * 16)
    token.chmod(0o644)
    assert read_token(token) == Token(b"x" * 16)
    link = open_folder / "token"
    link.symlink_to(token)
    assert read_token(link) == Token(b"x" * 16), "it is where the link leads to"
    inner.chmod(0o711)
    for path in (token, link):
        with pytest.raises(RequestError, match="others cannot read"):
            read_token(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_mounted_secret(open_folder: Path) -> None:
    """Kubernetes and systemd hand a secret over as a file of root's that a group may read."""
    token = open_folder / "token"
    token.write_text("x" * 16)
    token.chmod(0o440)
    os.chown(token, 0, 1234)
    assert read_token(token).secret == b"x" * 16
    os.chown(token, 4321, 1234)
    with pytest.raises(RequestError, match="its group cannot read"):
        read_token(token)
    os.chown(token, 0, 0)
    token.chmod(0o444)
    with pytest.raises(RequestError, match="others cannot read"):
        read_token(token)


def test_a_token_that_comes_through_a_pipe() -> None:
    """``--token-file <(vault read ...)``"""
    reader, writer = os.pipe()
    os.write(writer, b"x" * 16)
    os.close(writer)
    assert read_token(f"/dev/fd/{reader}") == Token(b"x" * 16)
    os.close(reader)


def test_the_token_of_a_job(
    run: Run, token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_node, "_serve", lambda node: None)
    code, out, err = run("token", "--job", "resnet-7", "--token-file", str(token))
    made = hmac.new(b"secret-of-the-test", b"deepvm job\0resnet-7", "sha256").hexdigest()
    assert (code, out, err) == (0, f"deepvm-job-token resnet-7 {made}\n", "")
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(token))
    assert run("token", "--job", "resnet-7")[1] == out != run("token", "--job", "resnet-8")[1]
    mine = tmp_path / "mine"
    mine.write_text(out)
    assert read_token(mine) == Token(bytes.fromhex(made), "resnet-7") and made not in repr(
        read_token(mine)
    )
    for words in (["token", "--job", "resnet-8"], ["serve", "--listen", "127.0.0.1:0"]):
        code, out, err = run(*words, "--token-file", str(mine))
        assert (code, out) == (2, "") and "the node's own token" in err and "resnet-7" in err
    assert run("token", "--job", "../x")[0] == 2


def test_files_for_all_connections() -> None:
    code = (
        "import resource as r; from deepvm.cli.checkpoint.memory_node import _allow_files; "
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1];"
        "r.setrlimit(r.RLIMIT_NOFILE, (100, min(hard, 1000) if hard > 0 else 1000)); "
        "_allow_files(200); print(r.getrlimit(r.RLIMIT_NOFILE)[0]); _allow_files(9000);"
        "print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["664", "1000"], done.stderr


def test_a_port_in_use(run: Run, token: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        code, out, err = run("serve", "--token-file", str(token), "--listen", place)
    assert (code, out) == (1, "") and f"{place}: cannot listen there: Address already in use" in err


def test_a_folder_that_cannot_be(run: Run, token: Path) -> None:
    code, out, err = run(
        "serve",
        "--token-file",
        str(token),
        "--listen",
        "127.0.0.1:0",
        "--persist",
        f"file://{token}/x",
    )
    assert (code, out) == (1, "") and "cannot be used for checkpoints" in err


def test_serve_and_status(run: Run, token: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    words = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "16MiB",
        "--persist",
        f"file://{folder}",
    ]
    with subprocess.Popen(
        [*COMMAND, *words, "--token-file", str(token)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None and node.stderr is not None
        line = node.stdout.readline()
        place = line.removeprefix("listening on ").strip()
        assert line == f"listening on {place}\n" and Address.parse(place).port > 0

        code, out, _ = run("status", "--node", place, "--token-file", str(token), "-o", "json")
        found = json.loads(out)
        assert code == 0 and found["schema_version"] == "deepvm.memory-node/1"
        assert found["memory"]["limit_bytes"] == 16 * 2**20 and found["versions"] == []
        assert found["connections"] == 1 and found["persist"] == f"file://{folder}"
        code, out, _ = run("status", "--node", place, "--token-file", str(token))
        assert code == 0 and "16.77 MB" in out and str(folder) in out

        wrong = tmp_path / "wrong"
        wrong.write_text("other-secret-of-the-test")
        code, out, err = run("status", "--node", place, "--token-file", str(wrong))
        assert (code, out) == (1, "") and "the token is wrong" in err
        code, out, _ = run("status", "--node", place, "--token-file", str(token))
        assert code == 0 and "refused 1 without the token" in out
        code, out, _ = run("status", "--node", place, "--token-file", str(token), "-o", "json")
        assert json.loads(out)["refused"] == {"unproven": 1}
        code, out, err = run("serve", "--token-file", str(token), *words[1:])
        assert (code, out) == (1, "") and "another memory node writes there" in err

        node.send_signal(signal.SIGINT)
        assert node.wait(10) == 0
        assert node.stdout.read() == ""  # one line in all
        log = node.stderr.read()
        assert "secret-of-the-test" not in log and "Traceback" not in log


def test_status_takes_the_token_from_the_environment(
    run: Run, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run("status", "--node", "127.0.0.1:9")
    assert code == 2 and "DEEPVM_TOKEN_FILE" in err
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(token))
    assert token_from_environment() == Token(b"secret-of-the-test")
    code, out, err = run("status", "--node", "127.0.0.1:9")
    assert (code, out) == (1, "") and "tcp://127.0.0.1:9: Connection refused" in err
    code, _, err = run("status", "--node", "no such host:9")
    assert code == 2 and "--node: " in err


def test_the_units_options_exist(run: Run) -> None:
    """The systemd unit names options that the command has."""
    code, out, _ = run("serve", "--help")
    assert code == 0
    text = UNIT.read_text()
    command = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    settings = next(line for line in text.splitlines() if line.startswith("Environment="))
    used = {w for w in (command + " " + settings.replace("=", " ")).split() if w.startswith("--")}
    assert {"--token-file", "--persist", "--listen", "--memory"} <= used
    assert all(option in out for option in used)
    assert os.access(UNIT, os.R_OK) and "KillSignal=SIGTERM" in text


def test_the_unit_knows_how_the_node_ends() -> None:
    lines = UNIT.read_text().splitlines()
    facts = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    # Starting it again would change nothing
    wrong_request = RequestError("memory", "plenty", "less").exit_code
    assert (
        facts["RestartPreventExitStatus"] == str(wrong_request) and facts["Restart"] == "on-failure"
    )
    assert float(facts["TimeoutStopSec"]) > NodeSettings(Address("", 0), b"x", 1).drain_s
    assert int(facts["LimitNOFILE"]) > 2 * NodeSettings(Address("", 0), b"x", 1).connections
