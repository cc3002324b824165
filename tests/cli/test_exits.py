"""How a command ends: its exit code after every error, with and without --debug, and after Ctrl-C
at any moment.
"""

from __future__ import annotations

import gc
import importlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command import Run

import deepvm
from deepvm import errors
from deepvm.cli.main import main
from deepvm.errors import DeepVMError

QUICK = ["recommend", "--pw", "3", "--catalog", "paper", "-o", "json"]


def kinds_of(base: type[DeepVMError]) -> Iterator[type[DeepVMError]]:
    yield base
    for kind in base.__subclasses__():
        if kind.__module__.startswith("deepvm."):
            yield from kinds_of(kind)


def every_kind() -> list[type[DeepVMError]]:
    """The whole tree, also what a module that is seldom loaded adds to it."""
    package = Path(deepvm.__file__).parent
    for path in package.rglob("*.py"):
        if re.search(r"^class \w+\((\w*Error|Refused)\b", path.read_text(), re.MULTILINE):
            importlib.import_module(
                ".".join(("deepvm", *path.relative_to(package).with_suffix("").parts))
            )
    return sorted(set(kinds_of(DeepVMError)), key=lambda k: k.__qualname__)


def made(kind: type[DeepVMError]) -> DeepVMError:
    """One of them, whatever its constructor wants."""
    error = kind.__new__(kind, "something is wrong")
    error.__dict__.update(
        {"option": "pw", "value": "x", "allowed": "a number", "library": "torch", "extra": "train"}
    )
    return error


@pytest.mark.parametrize(
    "words", [["recommend", "--pw", "3"], ["--debug", "recommend", "--pw", "3"]]
)
def test_every_error_has_its_exit_code_also_with_debug(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = every_kind()
    assert len(kinds) >= 17
    for kind in kinds:

        def fail(*_: object, error: DeepVMError = made(kind), **__: object) -> None:  # noqa: B008
            raise error

        monkeypatch.setattr("deepvm.services.open_catalogs.CatalogOpener.all", fail)
        with pytest.raises(SystemExit) as end:
            main(words)
        out, err = capsys.readouterr()
        assert end.value.code == kind.exit_code, kind
        assert ("Traceback" in err) == ("--debug" in words), kind
        assert out == "" and err.splitlines()[-1].startswith("Error: "), kind


def test_the_tree_of_errors_is_the_documented_one() -> None:
    drawn = {
        name: int(code)
        for name, code in re.findall(
            r"^[ │├└─]*(\w+) +(?:\(\w+\) +)?(?:exit code )?([1-5])\b",
            errors.__doc__ or "",
            re.MULTILINE,
        )
    }
    assert drawn == {k.__name__: k.exit_code for k in every_kind() if k.__name__ in drawn}
    assert {k.__name__ for k in every_kind() if k.__module__ == errors.__name__} <= set(drawn)


def test_the_collector_of_a_program_that_calls_main_is_left_alone(run: Run) -> None:
    """Only a process of its own need not look for garbage: frozen objects of another program are
    never freed.
    """
    frozen, thresholds = gc.get_freeze_count(), gc.get_threshold()
    assert run(*QUICK)[0] == 0
    # Fewer where something of before that was frozen is freed meanwhile
    assert gc.get_freeze_count() <= frozen
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["recommend"], 2),
        (["recommend", "--pw", "3", "--no-such"], 2),
        (["no-such-command"], 2),
        (["catalog", "no-such-command"], 2),
        (["recommend", "--pw", "-1"], 2),
        (["sweep", "--pw", "x"], 2),
        (["explain", "g5.xlarge", "--pw", "3", "--catalog", "no-such"], 4),
        (["simulate", "--job", "no-such.yaml"], 4),
        (["catalog", "show", "no-such"], 4),
        (["tables", "show", "no-such"], 2),
        (["ckpt", "ls", "no-such-folder"], 4),
        (["traces", "show", "no-such.json"], 4),
        (["recommend", "--pw", "3", "--prices", "live"], 5),
        (["recommend", "--pw", "0.01", "--catalog", "paper"], 3),
    ],
    ids=str,
)
def test_debug_changes_no_exit_code(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--debug"]):
        with pytest.raises(SystemExit) as end:
            main([*words, *more])
        assert end.value.code == code
        # Nothing feasible is an answer, no error.
        assert ("Traceback" in capsys.readouterr().err) == (bool(more) and code != 3)


PROGRAM = """
import importlib.abc, os, signal, sys
def hit(): os.kill(os.getpid(), signal.SIGINT)
{setup}
sys.argv = ["deepvm", *{words!r}]
from deepvm.cli.main import main
main()
"""
AT_IMPORT = """
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}: hit()
sys.meta_path.insert(0, Finder())
"""
IN_COMMAND = """
def planned(*_, **__):
    {body}
import deepvm.services.open_catalogs
deepvm.services.open_catalogs.CatalogOpener.all = planned
"""


def ended(setup: str, words: list[str] = QUICK, **how: object) -> subprocess.CompletedProcess[str]:
    """The program with one Ctrl-C at a known moment.

    Conftest sees to it that SIGINT is not ignored.
    """
    program = PROGRAM.format(setup=setup, words=words)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, **how
    )  # type: ignore[call-overload]


def test_ctrl_c_while_anything_is_loaded() -> None:
    for name in [
        *(
            "typer",
            "typer.core",
            "deepvm.cli.app",
            "deepvm.cli.app",
            "deepvm.cli.plan.recommend",
            "deepvm.errors",
        ),
        *(
            "numpy",
            "deepvm.catalog.store",
            "deepvm.planner.recommend",
            "pulp",
            "deepvm.reports.plans.recommendation_documents",
        ),
    ]:
        done = ended(AT_IMPORT.format(name=name))
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "Error: interrupted\n")


def test_ctrl_c_while_a_command_runs() -> None:
    for body in [
        "hit()",
        # Python ends by the signal where its own exception has passed through an exec(), as
        # dataclasses use it
        "exec('hit()', globals())",
        "exec('class Lost:\\n  def __del__(self): hit()', globals()); Lost()",
        "exec('try:\\n  hit()\\nexcept BaseException: raise RuntimeError from None', globals())",
        "exec('try:\\n  hit()\\nexcept BaseException: pass', globals()); sys.exit(0)",
    ]:
        done = ended(IN_COMMAND.format(body=body))
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "Error: interrupted\n")


def test_ctrl_c_at_the_end_says_one_line_at_most() -> None:
    quick = ["--version"]
    leaving = ended("import atexit, threading\nthreading._register_atexit(hit)", quick)
    assert (leaving.returncode, leaving.stdout, leaving.stderr) == (
        130,
        "deepvm 0.1.0\n",
        "Error: interrupted\n",
    )
    # When Python takes its modules down, all is done and the exit code is decided.
    late = (
        "class Late:\n  def __del__(self, kill=os.kill, pid=os.getpid()): kill(pid, 2)\nlate ="
        " Late()"
    )
    gone = ended(late, quick)
    assert (gone.returncode, gone.stdout, gone.stderr) == (0, "deepvm 0.1.0\n", "")


@pytest.mark.parametrize("name", ["typer", "numpy"])
def test_ctrl_c_stays_ignored_where_it_was(name: str) -> None:
    """As behind an ``&`` in a script."""
    done = ended("signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + AT_IMPORT.format(name=name))
    assert done.returncode == 0 and done.stdout.startswith("{") and "interrupted" not in done.stderr


def test_a_memory_node_ignores_what_its_shell_ignores(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef" * 2)
    (tmp_path / "token").chmod(0o600)
    words = [
        "memory-node",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        str(tmp_path / "token"),
    ]
    node = subprocess.Popen(
        [sys.executable, "-m", "deepvm", *words, "--memory", "64MiB"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        assert node.stdout is not None and node.stdout.readline().startswith("listening on ")
        node.send_signal(signal.SIGINT)
        time.sleep(0.7)
        assert node.poll() is None
        node.terminate()
        assert node.wait(30) == 0
    finally:
        node.kill()
        node.communicate()


def test_a_wrong_value_in_a_file_of_the_cloud_names_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my_config"
    file.write_text("[default]\nregion = nowhere\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    code, _, err = run("recommend", "--pw", 3)
    assert code == 2 and err.startswith(
        f"Error: invalid value for region of profile default in {file}: 'nowhere'"
    )


@pytest.mark.parametrize("words", [["-m", "deepvm"], ["-m", "deepvm.cli.main"]])
def test_the_package_is_the_command_too(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *words, "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "deepvm 0.1.0\n", "")
    wrong = subprocess.run(
        [sys.executable, *words, "recommend"], capture_output=True, text=True, timeout=60
    )
    assert wrong.returncode == 2 and "deepvm recommend" in wrong.stderr


@pytest.mark.parametrize(
    ("library", "extra", "words"),
    [
        ("scipy", "fit", ("profile", "fit", "{points}")),
        (
            "matplotlib",
            "plot",
            ("sweep", "--catalog", "paper", "--pw", "1:2:1", "--plot", "{folder}/a.png"),
        ),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    library: str, extra: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    points = tmp_path / "points.csv"
    points.write_text(
        "n,speedup\n" + "".join(f"{n},{n / (1 + n / 50)}\n" for n in (1, 2, 4, 8, 16, 32))
    )
    code = (
        f"import sys; sys.modules[{library!r}] = None; from deepvm.cli.main import main;"
        " main(sys.argv[1:])"
    )
    given = [word.format(points=points, folder=tmp_path) for word in words]
    ended = subprocess.run(
        [sys.executable, "-c", code, *given], capture_output=True, text=True, timeout=60
    )
    assert (
        ended.returncode == 2
        and f"needs {library}" in ended.stderr
        and f"'.[{extra}]'" in ended.stderr
    )
    assert "Traceback" not in ended.stderr
