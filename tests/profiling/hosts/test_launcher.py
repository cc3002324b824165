"""Hosts as users write them, commands on their way to a host, and processes that never outlive who
started them.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.processes import gone, until

from deepvm.errors import CatalogFormatError, DataError, RequestError
from deepvm.profiling.hosts.launcher import Host, Launcher, parse_hosts, read_hosts

HOST = Host("h1")


# --- hosts ---


def test_names_and_files_of_hosts(tmp_path: Path) -> None:
    assert parse_hosts("a, ubuntu@10.0.0.7 ,c") == (Host("a"), Host("ubuntu@10.0.0.7"), Host("c"))
    assert Host("ubuntu@10.0.0.7").plain == "10.0.0.7"
    file = tmp_path / "hosts"
    file.write_text("# my VMs\n10.0.0.1 slots=4\n\nvm-2  slots=4 address=10.0.0.2  # the second\n")
    assert read_hosts(file) == (Host("10.0.0.1", "", 4), Host("vm-2", "10.0.0.2", 4))


def test_hosts_with_a_type_a_price_a_port_and_a_user(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("vm-1 type=g4dn.xlarge price=0.25 port=2222 user=ubuntu\nvm-2\n")
    first, second = read_hosts(file)
    assert first == Host("ubuntu@vm-1", "", 0, 2222, "g4dn.xlarge", 0.25) and second == Host("vm-2")
    ssh = Launcher(("ssh", "-v", "{host}"), "python3", "", quoted=True, local=False)
    assert ssh.command(first, "m", []) == ["ssh", "-p", "2222", "-v", "ubuntu@vm-1", "python3 -m m"]
    assert ssh.command(second, "m", []) == ["ssh", "-v", "vm-2", "python3 -m m"]
    other = Launcher(("kubectl", "exec", "{host}"), "python3", "", quoted=False, local=False)
    assert other.command(first, "m", [])[:3] == ["kubectl", "exec", "ubuntu@vm-1"]


def test_keys_of_a_line_that_cannot_be(tmp_path: Path) -> None:
    for line, said in [
        ("a price=-1", "expected one host a line"),
        ("a price=free", "expected one host a line"),
        ("a port=0", "expected one host a line"),
        ("a port=70000", "expected one host a line"),
        ("a user=-x", "expected one host a line"),
        ("x@a user=y", "expected one host a line"),
        ("a type=", "expected one host a line"),
        ("a slots=1 slots=1", "expected one host a line"),
        ("a color=red", "expected one host a line"),
    ]:
        (tmp_path / "hosts").write_text(line)
        with pytest.raises(CatalogFormatError) as caught:
            read_hosts(tmp_path / "hosts")
        assert said in str(caught.value)


def test_names_that_are_none() -> None:
    for text in ["", " , ", "a,a", "a,-oProxyCommand=x", "a b", "a;reboot", "a,$(x)", "é"]:
        with pytest.raises(RequestError) as caught:
            parse_hosts(text)
        assert caught.value.option == "hosts"


def test_every_line_of_rubbish_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("good\n<training-1> slots=1\nb slots=x\n-l root\nd color=red\n{}\n")
    with pytest.raises(CatalogFormatError) as caught:
        read_hosts(file)
    assert [p.line for p in caught.value.problems] == list(range(2, 7))
    assert "fill in" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (b"", DataError, "is empty"),
        (b"# nobody\n", RequestError, "0 hosts"),
        (b"\xff\xfe\x00", DataError, "not UTF-8"),
        (b"a\nb\na\n", RequestError, "two processes on one VM are not two VMs"),
        (b"a slots=1\nb slots=2\n", RequestError, "different slots"),
    ],
)
def test_files_that_hold_no_hosts(
    tmp_path: Path, data: bytes, error: type[Exception], said: str
) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(data)
    with pytest.raises(error, match=said) as caught:
        read_hosts(file)
    assert "catalog" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="a file that exists"):
        read_hosts(tmp_path / "none")


# --- the template ---


def test_templates_that_cannot_be_used() -> None:
    for template, said in [
        ("ip netns exec", "{host} in it"),
        ("", "{host} in it"),
        ("ssh 'x {host}", "balanced quotes"),
        ("no-such-program {host}", "there is no no-such-program here"),
        ("sh {host} x{command}", "a word of its own"),
    ]:
        with pytest.raises(RequestError) as caught:
            Launcher.parse(template)
        assert caught.value.option == "launcher" and said in caught.value.allowed


def test_a_template_gets_words_or_one_word() -> None:
    assert Launcher.parse("env -i {host}", "py").command(HOST, "m", ["a b"]) == [
        "env",
        "-i",
        "h1",
        "py",
        "-m",
        "m",
        "a b",
    ]
    assert Launcher.parse("ssh {host}", "py").command(HOST, "m", ["a b"]) == [
        "ssh",
        "h1",
        "py -m m 'a b'",
    ]
    assert Launcher.parse("sh -c {command} {host}", "py").command(HOST, "m", ["a b"]) == [
        *("sh", "-c", "py -m m 'a b'", "h1")
    ]
    assert Launcher.parse("local").command(HOST, "m", []) == [sys.executable, "-m", "m"]
    assert Launcher.parse("local").local and not Launcher.parse("ssh").local


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What ssh and sshd do to a command: its words joined by blanks, given to a shell.

    In a home of its own.
    """
    home = tmp_path / "home of host"
    home.mkdir()
    script = tmp_path / "ssh"
    script.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do case $1 in -o) shift 2 ;; *) break ;; esac; done\n"
        f'shift\ncd {shlex.quote(str(home))} && HOME="$PWD" exec sh -c "$*"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return home


def through(launcher: Launcher, arguments: list[str]) -> list[str]:
    done = subprocess.run(
        launcher.command(HOST, "tell", arguments), capture_output=True, timeout=20, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_shell_of_a_host_gives_back_every_word(fake_ssh: Path) -> None:
    """Also a folder and an interpreter with blanks in their names, and the home of the host."""
    folder = fake_ssh / "my work"
    folder.mkdir()
    (folder / "tell.py").write_text(
        "import json, os, sys\nprint(json.dumps([os.getcwd(), *sys.argv[1:]]))\n"
    )
    own = fake_ssh / "my python"
    own.symlink_to(sys.executable)
    nasty = [
        "",
        " ",
        "'",
        '"',
        "$HOME",
        "`id`",
        "a\nb",
        "*",
        "~",
        "\\",
        "é",
        '{"model": "x y"}',
        "-o",
        "a;b",
        "#",
    ]
    for python, there in (
        (str(own), "my work"),
        ("~/my python", "~/my work"),
        (str(own), str(folder)),
    ):
        assert through(Launcher.parse("ssh", python, there), nasty) == [str(folder), *nasty]


@pytest.mark.system
@settings(max_examples=examples(30))
@given(
    st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=6)
)
def test_any_words_survive_a_shell(words: list[str]) -> None:
    whole = Launcher.parse("sh {host} {command}", "printf").command(HOST, "%s\\0", words)[-1]
    # printf -m is no option everywhere: only the words behind the module are of interest
    script = whole.replace("printf -m '%s\\0'", "printf '%s\\0'", 1)
    done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=20, check=True)
    assert done.stdout == ("".join(w + "\0" for w in words) or "\0").encode()


# --- the watchdog ---

HELD = """
import subprocess, sys, time
from deepvm.profiling.hosts.watchdog import hold
lines = hold(float(sys.argv[1]))
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
child.send_signal({stop})
print(child.pid, flush=True)
print(lines.get(), flush=True)
time.sleep(100)
"""


def held(
    limit_s: float = 60, *, stop: int = signal.SIGCONT, before: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    words = [*before, sys.executable, "-c", HELD.format(stop=int(stop)), str(limit_s)]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("stop", [signal.SIGCONT, signal.SIGSTOP])
def test_closed_input_ends_a_process_and_its_children(stop: int) -> None:
    """A child in a session of its own, as torchrun starts its workers.

    And one that does not run.
    """
    process = held(stop=stop)
    assert process.stdin is not None and process.stdout is not None
    child = int(process.stdout.readline())
    process.stdin.write("a line\n")
    process.stdin.flush()
    assert process.stdout.readline() == "a line\n" and not gone(child)
    _, errors = process.communicate(timeout=10)  # closes the input
    assert process.returncode == 143 and "standard input was closed" in errors
    assert until(lambda: gone(child), 5)


def test_time_ends_a_process() -> None:
    process = held(0.5)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert process.wait(10) == 143 and until(lambda: gone(child), 5)
    assert "its time is over" in process.communicate(timeout=5)[1]


def test_a_parent_that_is_killed_takes_its_child_along() -> None:
    """Its input stays open: the test holds the other end."""
    process = held(before=("sh", "-c", 'exec 3<&0; "$@" <&3 & wait', "sh"))
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    assert until(lambda: gone(child), 5)
    process.communicate(timeout=5)


def test_temporary_files_go_with_a_process_that_the_watchdog_ends(tmp_path: Path) -> None:
    """As torchrun's folder of logs, when the command that waits for it is killed."""
    code = "import tempfile, time; from deepvm.profiling.hosts.watchdog import agent\n"
    code += "agent(lambda order, lines: [print(tempfile.mkdtemp(), flush=True), time.sleep(60)])"
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code, '{"limit_s": 60}'], stdin=pipe, stdout=pipe, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        made = Path(process.stdout.readline().decode().strip())
        assert made.is_dir() and tmp_path in made.parents
        process.stdin.close()
        assert process.wait(20) == 143
    assert list(tmp_path.iterdir()) == []


def test_a_work_that_was_done_counts_even_if_the_interpreter_would_abort_at_its_end(
    tmp_path: Path,
) -> None:
    """As with gloo, whose threads outlive the group."""
    code = "import atexit, os, tempfile; from deepvm.profiling.hosts.watchdog import agent\n"
    code += "atexit.register(os.abort)\n"
    code += "agent(lambda order, lines: print('said', tempfile.mkdtemp(), flush=True))"
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code, '{"limit_s": 60}'], stdin=pipe, stdout=pipe, env=environment
    ) as process:
        assert process.stdout is not None and process.stdout.read().startswith(b"said")
        assert process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []
