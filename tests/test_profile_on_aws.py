"""``scripts/profile_on_aws.py``: every command is shown, hosts are made ready, a run goes on where
it was ended.

The hosts are folders of this machine: an ``ssh`` of the tests' own runs what it is given in the
home of the host.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.places import GOLDEN_FOLDER, ROOT
from support.processes import marked, until
from support.small_disk import small_disk

from deepvm.errors import RequestError

SCRIPT = ROOT / "scripts" / "profile_on_aws.py"
GOLDEN = GOLDEN_FOLDER / "profile_on_aws.txt"
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
host="${1#*@}"; shift
echo "$host: $*" >>"$HOMES/asked"
[ -d "$HOMES/$host" ] || { echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; }
export HOME="$HOMES/$host" PATH="$HOMES/bin:$PATH"
cd "$HOME" || exit 255
exec sh -c "$*"
"""  # noqa: E501
# Only what needs the network is left out: pip; and a virtual environment is a word for this Python.
PYTHON3 = f"""#!/bin/sh
case "$*" in "-m venv venv") ;; *) exec {shlex.quote(sys.executable)} "$@";; esac
mkdir -p venv/bin
cat >venv/bin/python <<'END'
#!/bin/sh
case "$*" in *"-m pip install"*) echo "$HOME: $*" >>"$HOMES/pip"; exit 0;; esac
PYTHONPATH="$HOME/deepvm-profile/source" exec {shlex.quote(sys.executable)} "$@"
END
chmod +x venv/bin/python
"""
TINY = ["--model", "resnet18", "--repeats", "1", "--checkpoint-size", "2MB", "--yes", "--"]
TINY += [
    "--batch",
    "2",
    "--windows",
    "3",
    "--seconds",
    "0.01",
    "--steps",
    "1",
    "--warmup",
    "0",
    "--device",
    "cpu",
]


class Place:
    """A folder with the hosts ``one``, ``two`` and ``mem`` in it, and how to start the script
    there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.homes = folder, folder / "homes"
        for name in ("one", "two", "mem", "bin"):
            (self.homes / name).mkdir(parents=True)
        for path, text in ((folder / "ssh", SSH), (self.homes / "bin" / "python3", PYTHON3)):
            path.write_text(text)
            path.chmod(0o755)
        (folder / "hosts.txt").write_text("ubuntu@one\nubuntu@two\n")
        self.environment = {
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "HOMES": str(self.homes),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder / "tmp"),
        }
        (folder / "tmp").mkdir()

    def words(self, *more: str) -> list[str]:
        words = ["--trainers", "hosts.txt", "--receiver", "mem", "--trainer-type", "g4dn.xlarge"]
        words += ["--receiver-type", "c4.xlarge", "--out", "home.json", *more]
        return [sys.executable, str(SCRIPT), *words]

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        found = subprocess.run(
            self.words(*more),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in found.stderr
        return found

    def asked(self) -> str:
        file = self.homes / "asked"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("the script's commands differ outside of a clone with git")
    return Place(tmp_path)


def plain(text: str) -> str:
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout
    shown = text.replace(commit.strip(), "COMMIT").replace(sys.executable, "PYTHON")
    return shown.replace(str(ROOT), "CLONE")


def test_a_dry_run_shows_every_command_and_asks_nobody(place: Place) -> None:
    done = place.run("--dry-run", "--", "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert plain(done.stdout) == GOLDEN.read_text()
    assert place.asked() == ""
    assert not (place.folder / "home.json.parts").exists()
    # 2 x 0.526 + $0.199/h and 10 + 1 minutes and 6 runs of 85 s and 30 s and 6 pushes of 1 + 2.4 /
    # 2.8 s
    seconds = 600 + 60 + 6 * 85 + 30 + 6 * (1 + 2.4 / 2.8)
    assert f"Expected time: {seconds / 60:.0f} min" in done.stderr
    assert f"Expected cost, on demand: ${1.251 * seconds / 3600:.2f} ($1.251/h:" in done.stderr
    assert "Expected cost, spot: $" in done.stderr and "Assumed: " in done.stderr


def test_every_line_is_for_a_shell(place: Place) -> None:
    text = place.run("--dry-run").stdout
    subprocess.run(["sh", "-n", "-c", text], check=True, timeout=10)
    subprocess.run(
        ["sh", "-n", str(ROOT / "scripts" / "profile_on_host.sh")], check=True, timeout=10
    )
    blocks = text.split("\n\n")
    # Looking, copying, installing what trains, installing what receives, measuring; however many
    # hosts there are.
    assert len(blocks) == 5 and all(block.startswith("# ") for block in blocks)
    (place.folder / "hosts.txt").write_text("".join(f"ubuntu@vm{i}\n" for i in range(8)))
    more = place.run("--dry-run").stdout
    assert (
        len(more.split("\n\n")) == 5
        and "on each of these 9 hosts" in more
        and len(more) < len(text) + 500
    )


def test_it_starts_only_when_somebody_says_so(place: Place) -> None:
    """Neither without a terminal nor with an answer that came through a pipe."""
    for words in (place.words(), ["sh", "-c", f"echo n | {shlex.join(place.words())}"]):
        done = subprocess.run(
            words,
            cwd=place.folder,
            env=place.environment,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 2
        assert "Error: --yes: not given (expected this option: no terminal is here" in done.stderr
    assert place.asked() == ""


def test_mistyped_types_are_said(place: Place) -> None:
    done = place.run("--dry-run", "--trainer-type", "g4dn.xlrge")
    assert (
        "no catalog that comes with deepvm has a type g4dn.xlrge; did you mean g4dn.xlarge?"
        in done.stderr
    )


def test_a_host_that_does_not_answer(place: Place) -> None:
    (place.homes / "two").rmdir()
    done = place.run("--yes")
    assert done.returncode == 1
    assert "failed on 1 of 3" in done.stderr
    assert "ubuntu@two: ssh: connect to host two port 22: No route to host" in done.stderr
    assert "port 22 open" in done.stderr
    assert "tar" not in place.asked()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--receiver", "-oProxyCommand=x"], "--receiver"),
        (["--receiver", "root@one"], "a VM of its own"),
        (["--sizes", "1,4"], "--sizes: '1,4'"),
        (["--checkpoint-size", "300"], "--checkpoint_size: '300'"),
    ],
)
def test_wrong_usage(
    place: Place, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    """In this process: what a start of Python takes ten times is better spent."""
    monkeypatch.chdir(place.folder)
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("profile_on_aws", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "profile_on_aws", module)
    spec.loader.exec_module(module)
    # An equals sign lets a value begin with a hyphen.
    order = module.read_arguments(place.words("--yes", f"{words[0]}={words[1]}")[2:])
    with pytest.raises(RequestError) as refusal:
        module.Job(order)
    assert message in f"--{refusal.value.option}: {refusal.value.shown} {refusal.value.allowed}"


@pytest.mark.parametrize("start", ["--yes", "--dry-run"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--sizes", "1,4"],
            "Error: invalid value for --sizes: '1,4' (expected 1, which speed-ups are relative to",
        ),
        (["--", "--batch", "1"], "Error: invalid value for --batch: 1"),
    ],
)
def test_wrong_usage_is_found_before_anything_is_installed(
    place: Place, start: str, words: list[str], message: str
) -> None:
    done = place.run(start, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert place.asked() == "" and not (place.folder / "home.json.parts").exists()


def test_paths_with_anything_in_them(place: Place) -> None:
    odd = 'it\'s a $(file) & "more"'
    (place.folder / "hosts.txt").rename(place.folder / f"{odd}.txt")
    done = place.run(
        "--dry-run", "--trainers", f"{odd}.txt", "--out", f"{odd}.json", "--python", "~/a b/python"
    )
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    words = shlex.split(line)
    assert words[words.index("--hosts-file") + 1] == f"{odd}.txt"
    assert words[words.index("--out") + 1] == f"{odd}.json.parts"
    assert words[-2:] == [">", f".{odd}.json.new"]
    there = [shlex.split(row)[-2] for row in done.stdout.splitlines() if "find_spec" in row]
    assert len(there) == 2 and all(row.startswith("~/'a b/python' -c") for row in there)


def test_a_full_disk_is_that_of_its_host(place: Place) -> None:
    with small_disk(place.homes / "two", "256k"):
        done = place.run("--yes")
    assert done.returncode == 1
    assert "copying this clone failed on 1 of 3" in done.stderr
    assert "ubuntu@two: " in done.stderr and "No space left on device" in done.stderr
    assert not (place.homes / "two" / "deepvm-profile" / "copied").exists()


def test_room_for_what_is_installed_is_asked_for_before_the_download(place: Place) -> None:
    (place.homes / "bin" / "df").write_text("#!/bin/sh\necho tmpfs 256 100 156 39% /\n")
    (place.homes / "bin" / "df").chmod(0o755)
    done = place.run("--yes")
    assert done.returncode == 1
    assert "3000 MB are needed in" in done.stderr and "156 MB are free" in done.stderr
    assert not (place.homes / "pip").exists()


def test_an_installed_deepvm_of_another_version_is_refused(place: Place) -> None:
    python = place.folder / "old"
    python.write_text(
        f"#!/bin/sh\nshift 2\nexec {sys.executable} -c \"raise SystemExit('deepvm 0.0.1')\"\n"
    )
    python.chmod(0o755)
    done = place.run("--yes", "--python", str(python))
    assert (
        done.returncode == 1 and "deepvm 0.0.1" in done.stderr and "without --python" in done.stderr
    )


def shim(place: Place, name: str, text: str) -> None:
    (place.homes / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (place.homes / "bin" / name).chmod(0o755)


def shell(place: Place, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line],
        cwd=place.folder,
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def lines_for_one(place: Place, *words: str) -> tuple[str, str]:
    """What copies and what installs, for the host ``one``."""
    blocks = place.run("--dry-run", *words).stdout.split("\n\n")
    copy, install = (block.splitlines()[2].strip() for block in blocks[1:3])
    return f"host=ubuntu@one; {copy}", f"host=ubuntu@one; {install}"


def test_the_printed_lines_install_on_a_fresh_host_once(place: Place) -> None:
    """As somebody who copies them; apt-get brings venv, and what is there is not brought again."""
    copy, install = lines_for_one(place)
    real = (place.homes / "bin" / "python3").read_text().partition("\n")[2]
    without = 'case "$*" in *ensurepip*) [ -e "$HOMES/venv" ] || exit 1;; esac\n'
    shim(place, "python3", without + real)
    shim(
        place,
        "apt-get",
        'echo "$*" >>"$HOMES/apt"; case "$*" in *install*) : >"$HOMES/venv";; esac',
    )
    for _ in range(2):
        for line in (copy, install):
            done = shell(place, line)
            assert done.returncode == 0, done.stderr
    apt = (place.homes / "apt").read_text().splitlines()
    assert [line.partition("-q ")[2] for line in apt] == ["update", "-y install python3-venv"]
    pip = (place.homes / "pip").read_text().splitlines()
    assert [line.split()[-1] for line in pip] == ["torch", "./source[train]"]
    there = place.homes / "one" / "deepvm-profile"
    assert (there / "source" / "deepvm" / "cli" / "profile" / "profile_group.py").read_bytes()
    # Another version of this clone is installed anew.
    (there / "installed").write_text("another")
    assert shell(place, install).returncode == 0
    assert len((place.homes / "pip").read_text().splitlines()) == 4


def test_a_gpu_that_torch_does_not_see(place: Place) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU here")
    copy, install = lines_for_one(place, "--torch-index", "https://example.org/it's")
    shim(place, "nvidia-smi", "exit 0")
    shim(place, "df", "echo d 99999 1 99998 1% /")
    assert shell(place, copy).returncode == 0
    done = shell(place, install)
    assert done.returncode == 1 and "--torch-index names another build" in done.stderr
    assert "--index-url https://example.org/it's torch" in (place.homes / "pip").read_text()
    assert not (place.homes / "one" / "deepvm-profile" / "installed").exists()


@pytest.mark.slow
def test_ended_in_the_middle_and_continued(place: Place) -> None:
    pytest.importorskip("torch")
    before = os.sched_getaffinity(0)
    # Threads that wait for each other make steps many times as long
    os.sched_setaffinity(0, {min(before)})
    try:
        _ended_and_continued(place)
    finally:
        os.sched_setaffinity(0, before)


def _ended_and_continued(place: Place) -> None:
    words = place.words(*TINY)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, cwd=place.folder, env=place.environment, stderr=pipe, text=True
    ) as process:
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if line.startswith("looking at 2 hosts"):
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stderr.read()
        assert process.wait(60) == 143, "".join(seen) + rest
    assert "Traceback" not in rest
    mark = f"HOMES={place.homes}"
    assert until(lambda: not marked(mark), 20), marked(mark)
    parts = place.folder / "home.json.parts"
    first = (parts / "eflops-resnet18.json").read_bytes()
    assert (
        not (place.folder / "home.json").exists() and not (place.folder / ".home.json.new").exists()
    )
    # Torch for two, deepvm for three
    assert len((place.homes / "pip").read_text().splitlines()) == 5
    pip = (place.homes / "pip").read_text()
    assert (
        pip.count("whl/cpu torch") == 2 and pip.count("./source[train]") == 2 and "source\n" in pip
    )

    done = place.run(*TINY)
    assert done.returncode == 0, done.stderr
    assert "eflops-resnet18: measured before" in done.stderr
    assert (parts / "eflops-resnet18.json").read_bytes() == first
    assert (place.homes / "pip").read_text() == pip
    document = json.loads((place.folder / "home.json").read_text())
    assert [e["kind"] for e in document["entries"]] == ["eflops", "saturation", "scaling"]
    assert "refuse (processes of one machine" in done.stderr
    assert "Now end the VMs" in done.stderr
    # torch's cache is torch's own.
    assert [
        p.name for p in (place.folder / "tmp").iterdir() if not p.name.startswith("torchinductor")
    ] == []
    assert marked(mark) == {}
