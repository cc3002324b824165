"""Settings from the environment and from files: who wins, what is refused, and that the command
says who said so.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.command import Run
from support.effort import examples

from deepvm.cli import settings as configuration
from deepvm.cli.parameters import long_name, takes_flags, typed
from deepvm.cli.plan.sweep import ExplainFlags, SweepFlags
from deepvm.cli.settings import SETTABLE, ConfiguredCommand, read_settings, variable_of
from deepvm.core.options import option_of
from deepvm.errors import DataError, RequestError
from deepvm.services.plan_options import PlanFlags, RankFlags

SECRET = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"


@pytest.fixture(autouse=True)
def _nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, and a user without settings."""
    clear(monkeypatch, tmp_path)
    yield


def clear(patch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "here").mkdir()
    patch.chdir(folder / "here")
    patch.setenv("XDG_CONFIG_HOME", str(folder / "user"))
    for name in [n for n in os.environ if n.startswith("DEEPVM_")]:
        patch.delenv(name)


def user_file() -> Path:
    file = Path(os.environ["XDG_CONFIG_HOME"]) / "deepvm" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def received(record: type[PlanFlags], *words: str) -> PlanFlags:
    """What a configured command receives."""
    seen: list[PlanFlags] = []

    def command(flags: Any) -> None:
        seen.append(flags)

    command.__annotations__["flags"] = record
    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=ConfiguredCommand)(takes_flags(command))
    typer.main.get_command(app).main(list(words), standalone_mode=False)
    return seen[0]


# --- any value of each option, from any layer: against an oracle of one line ---

WORD = st.text(
    st.characters(
        codec="utf-8", exclude_characters=",", exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp"]
    ),
    min_size=1,
)
# Names that end so are places of files; they have a test of their own.
WORDS = WORD.filter(lambda w: not w.lower().endswith((".json", ".csv")))
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
LAYERS = ("flag", "environment", "folder", "user")


NAMES = tuple(SETTABLE)


def key_of(name: str) -> str:
    return SETTABLE[name].key


def kind_of(name: str) -> tuple[type, tuple[str, ...]]:
    """The form of an option's values in ``recommend``, and the only ones."""
    about, _, forms, _ = SETTABLE[name]
    form = str if name == "policy" else next(iter(forms))
    return form, tuple(about.choices)


def values_of(name: str) -> st.SearchStrategy[Any]:
    """Values of an option as TOML may hold them."""
    form, choices = kind_of(name)
    if form is bool:
        return st.booleans()
    if choices:
        return st.sampled_from(choices)
    # A folder: what is no whole path stands beside the file that names it
    if name == "price_history":
        return WORD.map(lambda w: f"/srv/{w}")
    return st.lists(WORDS, min_size=1, max_size=3) if form is list else WORDS | NUMBERS


def toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def written(values: Mapping[str, Any], dashes: bool = True) -> str:
    keys = {n: key_of(n) if dashes else key_of(n).replace("-", "_") for n in values}
    return "".join(f"{keys[n]} = {toml(v)}\n" for n, v in values.items())


def as_words(values: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in values.items():
        flag = long_name(name, SETTABLE[name].about)
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{flag}")
        else:
            words += [f"--{flag}={v}" for v in (value if isinstance(value, list) else [value])]
    return words


def as_variables(values: Mapping[str, Any]) -> dict[str, str]:
    def text(value: Any) -> str:
        return (
            ",".join(value)
            if isinstance(value, list)
            else str(value).lower()
            if value in (True, False)
            else str(value)
        )

    return {variable_of(key_of(n)): text(v) for n, v in values.items()}


def as_received(value: Any) -> Any:
    return value if isinstance(value, bool | list) else str(value)


@st.composite
def layers(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Random values of random options in random layers."""
    chosen = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=8))
    found: dict[str, dict[str, Any]] = {layer: {} for layer in LAYERS}
    for name in chosen:
        for layer in draw(st.sets(st.sampled_from(LAYERS), min_size=1)):
            found[layer][name] = draw(values_of(name))
    return found


@settings(max_examples=examples(150))
@given(layers(), st.booleans())
def test_the_strongest_layer_wins(given_in: dict[str, dict[str, Any]], dashes: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        clear(patch, Path(folder))
        given_in["user"].setdefault("pw", "3")
        Path("deepvm.toml").write_text(written(given_in["folder"], dashes), encoding="utf-8")
        user_file().write_text(written(given_in["user"], not dashes), encoding="utf-8")
        for variable, text in as_variables(given_in["environment"]).items():
            patch.setenv(variable, text)
        flags = received(RankFlags, *as_words(given_in["flag"]))
    for name, settable in SETTABLE.items():
        expected = next(
            (as_received(given_in[layer][name]) for layer in LAYERS if name in given_in[layer]),
            typed(settable.default, settable.about),
        )
        assert getattr(flags, name) == expected, name


@pytest.mark.parametrize("name", NAMES)
def test_every_option_reaches_all_commands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is set reaches all commands that have the option."""
    form, choices = kind_of(name)
    value = (
        True
        if form is bool
        else [choices[-1]]
        if choices and form is list
        else choices[-1]
        if choices
        else "7"
    )
    value = ["7", "8"] if form is list else "/srv/7" if name == "price_history" else value
    monkeypatch.setenv(*next(iter(as_variables({name: value}).items())))
    pw = [] if name == "pw" else ["--pw", "3"]
    assert getattr(received(RankFlags, *pw), name) == value
    if name in {f.name for f in dataclasses.fields(PlanFlags) if option_of(f)}:
        assert getattr(received(ExplainFlags, *pw), name) == value
        assert getattr(received(SweepFlags, *pw), name) == ([value] if name == "policy" else value)


def test_the_real_command_is_set_from_a_file(run: Run) -> None:
    Path("deepvm.toml").write_text(
        'pw = 3.0\nobjective = "flopp"\ncheckpoint-size = "1GB"\ntop = 1\nexclude = "g5*"\n'
    )
    request = json.loads(run("recommend", "-o", "json", "--objective", "cost-per-work")[1])[
        "request"
    ]
    expected = {
        "pw_usd_per_hour": 3.0,
        "objective": "cost-per-work",
        "checkpoint_bytes": 10**9,
        "top": 1,
    }
    assert expected.items() <= request.items()
    assert request["exclude"] == ["g5*"]


def test_a_list_of_policies_is_for_the_sweep(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("deepvm.toml").write_text('pw = 3\npolicy = ["deepvm", "noscale"]\n')
    assert received(SweepFlags).policy == ["deepvm", "noscale"]
    code, _, err = run("recommend")
    assert code == 4
    assert "policy: 'deepvm, noscale' (expected a single value" in err
    monkeypatch.setenv("DEEPVM_POLICY", "cost-first, noscale")
    assert received(SweepFlags).policy == ["cost-first", "noscale"]
    code, _, err = run("recommend")
    assert code == 2
    assert err.startswith("Error: invalid value for DEEPVM_POLICY: 'cost-first, noscale'")
    monkeypatch.setenv("DEEPVM_POLICY", "noscale")
    assert (received(SweepFlags).policy, received(RankFlags).policy) == (["noscale"], "noscale")


def test_a_list_on_the_command_line_replaces_a_list_that_is_set() -> None:
    Path("deepvm.toml").write_text('exclude = ["a", "b"]')
    assert received(RankFlags, "--pw", "3", "--exclude", "c").exclude == ["c"]
    Path("deepvm.toml").write_text("exclude = []")
    user_file().write_text('exclude = ["a"]')
    assert received(RankFlags, "--pw", "3").exclude == []


def test_empty_variables_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("deepvm.toml").write_text('prices = "live"')
    monkeypatch.setenv("DEEPVM_PRICES", " ")
    assert received(RankFlags, "--pw", "3").prices == "live"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("YES", True),
        ("on", True),
        ("1", True),
        ("0", False),
        ("No", False),
        ("off", False),
    ],
)
def test_switches_in_the_environment(
    text: str, value: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("deepvm.toml").write_text(f"offline = {str(not value).lower()}")
    monkeypatch.setenv("DEEPVM_OFFLINE", text)
    assert received(RankFlags, "--pw", "3").offline is value


def test_files_are_looked_for_beside_the_file_that_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    user_file().write_text('catalog = "my.json"\nquota = "~/q.JSON"\nprice-history = "clone"')
    flags = received(RankFlags, "--pw", "3")
    assert flags.catalog == str(user_file().parent / "my.json")
    assert flags.quota == "/home/somebody/q.JSON"
    assert flags.price_history == str(user_file().parent / "clone")
    Path("deepvm.toml").write_text('catalog = "/srv/my.csv"\nquota = "none"')
    assert (received(RankFlags, "--pw", "3").catalog, received(RankFlags, "--pw", "3").quota) == (
        "/srv/my.csv",
        "none",
    )
    Path("deepvm.toml").write_text('catalog = "sub/my.json"')
    assert received(RankFlags, "--pw", "3").catalog == "sub/my.json"


# --- what is refused, and how ---

BAD_FILES = {
    "unknown key": ('checkpoint-sise = "1GB"', "(did you mean checkpoint-size?)"),
    "unknown key without a neighbor": ("\nxyzzy = 1", "unknown key 'xyzzy' (see 'deepvm config"),
    "section": ('[recommend]\nregion = "us-east-1"', "unknown key 'recommend'"),
    "twice in two spellings": ("max-nodes = 3\nmax_nodes = 4", "repeated key max_nodes"),
    "switch": ("pw = 3\noffline = 1", "invalid value for offline: 1 (expected true or false)"),
    "text": ("pw = true", "invalid value for pw: true (expected text in quotes, or a number)"),
    "list for a text": ("pw = [1, 2]", "invalid value for pw: a list of 2"),
    "list of lists": ("region = [['a']]", "(expected text in quotes, or a list of texts)"),
    "list with a switch": ("exclude = ['a', true]", "a list of 2"),
    "date": ("pw = 2026-01-01", "2026-01-01 (expected"),
    "no TOML": ("pw: 3", "not TOML"),
    "too deep": ("pw = " + "[" * 100_000, "not TOML"),
    "long value": (f'offline = "{"x" * 5000}"', "invalid value for offline"),
    "long key": ("x" * 5000 + " = 1", "unknown key"),
    "binary": (b"\x7fELF\x02\x01\xff\xfe", "byte 0xff at position 6 is not UTF-8"),
}


@pytest.mark.parametrize("where", ["folder", "user"])
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_named_with_the_place(name: str, where: str, run: Run) -> None:
    content, named = BAD_FILES[name]
    file = Path("deepvm.toml") if where == "folder" else user_file()
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    for words in (["recommend"], ["config", "show"]):
        code, out, err = run(*words)
        assert (code, out) == (4, "")
        assert err.startswith(f"Error: {file}:")
        assert named in err
        assert len(err) < 1000
    assert run("recommend", "--help")[0] == 0
    assert run("--version")[0] == 0
    assert run("catalog", "list")[0] == 0


def test_bad_things_with_the_name_of_the_file(run: Run) -> None:
    file = Path("deepvm.toml")

    def error() -> str:
        code, out, err = run("recommend", "--pw", "3")
        assert (code, out) == (4, "")
        return err

    file.mkdir()
    assert "deepvm.toml: is a folder" in error()
    file.rmdir()
    os.mkfifo(file)
    assert "is a pipe, socket or device" in error()  # and it does not wait for a writer
    file.unlink()
    file.symlink_to("nowhere.toml")
    assert "is a link to a file that does not exist" in error()
    file.unlink()
    file.symlink_to("/dev/zero")
    assert "is a pipe, socket or device" in error()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(run: Run) -> None:
    Path("deepvm.toml").write_text("pw = 3")
    Path("deepvm.toml").chmod(0)
    code, _, err = run("recommend")
    assert code == 4
    assert "Permission denied" in err


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"# nothing\n", b"\xef\xbb\xbfpw = 3\n", b"pw = 3\r\n# x\r\n"]
)
def test_empty_files_marks_and_other_line_ends_are_fine(content: bytes) -> None:
    Path("deepvm.toml").write_bytes(content)
    assert received(RankFlags, *([] if b"pw" in content else ["--pw", "3"])).pw == "3"


@settings(max_examples=examples(50))
@given(st.text() | st.binary())
@example("a.b.c = 1")
@example("'' = 1")
@example('"\\u001b[31m" = 1')
@example("[[pw]]")
@example("[pw]\n[pw]")
@example("offline = nan")
@example("pw = 1e999")
def test_no_file_is_more_than_an_error(content: str | bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        clear(patch, Path(folder))
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        Path("deepvm.toml").write_bytes(data)
        try:
            read_settings(os.environ)
        except DataError as error:
            assert str(error).startswith("deepvm.toml:")
            assert "\x1b" not in str(error)


def test_values_of_unknown_keys_are_not_shown(run: Run) -> None:
    for text in (f'aws_secret_access_key = "{SECRET}"', f'[aws]\nsecret = "{SECRET}"'):
        Path("deepvm.toml").write_text(text)
        code, out, err = run("recommend")
        assert (code, out) == (4, "")
        assert SECRET not in err


@pytest.mark.parametrize(
    ("variable", "text", "named"),
    [
        ("DEEPVM_OFFLINE", "maybe", "DEEPVM_OFFLINE: 'maybe' (expected true or false"),
        (
            "DEEPVM_CONFIG",
            "/no/such.toml",
            "DEEPVM_CONFIG: '/no/such.toml' (expected a TOML file that",
        ),
        (
            "DEEPVM_OBJECTIVE",
            "fast",
            "total-cost). Not from the command line: objective (DEEPVM_OBJECTIVE)",
        ),
        ("DEEPVM_CPU_ARCH", "sparc", "cpu-arch (DEEPVM_CPU_ARCH)"),
        ("DEEPVM_CHECKPOINT_SIZE", "many", "checkpoint-size (DEEPVM_CHECKPOINT_SIZE)"),
        ("DEEPVM_TIME_LIMIT", "soon", "time-limit (DEEPVM_TIME_LIMIT)"),
        ("DEEPVM_DAYS", "99", "days (DEEPVM_DAYS)"),
        ("DEEPVM_PW", "-1", "--pw: '-1'"),
    ],
)
def test_a_bad_variable_is_wrong_usage(
    variable: str, text: str, named: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    code, out, err = run("recommend", *([] if variable == "DEEPVM_PW" else ["--pw", "3"]))
    assert (code, out) == (2, "")
    assert named in err


def test_what_the_option_refuses_names_the_file(run: Run) -> None:
    Path("deepvm.toml").write_text('pw = 3\nobjective = "fast"\n')
    code, _, err = run("recommend")
    assert code == 2
    assert "invalid value for --objective: 'fast' (expected throughput, " in err
    assert "objective (deepvm.toml)" in err
    assert "objective (" not in run("recommend", "--objective", "slow")[2]
    assert run("recommend", "--objective", "flopp")[0] == 0
    Path("deepvm.toml").write_text('catalog = "no-such"')
    code, _, err = run("recommend", "--pw", "3")
    assert code == 4
    assert "Not from the command line: catalog (deepvm.toml); see 'deepvm config show'." in err


def test_settings_are_named_beside_the_cure_and_not_in_its_place(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "measured.json").write_text("{")
    Path("deepvm.toml").write_text('catalog = "paper"')
    code, _, err = run("recommend", "--pw", "3")
    assert code == 4
    assert (
        "deepvm tables restore" in err and "Not from the command line: catalog (deepvm.toml)" in err
    )
    assert "Not from" not in run("recommend", "--pw", "3", "--catalog", "no-such")[2]


def test_help_shows_the_defaults_of_deepvm(run: Run) -> None:
    before = run("recommend", "--help")
    Path("deepvm.toml").write_text("buffers = 9\ntop = 9")
    assert run("recommend", "--help") == before


def test_completion_works_beside_a_broken_file() -> None:
    import subprocess

    Path("deepvm.toml").write_text("?")
    environ = {
        "_DEEPVM_COMPLETE": "complete_bash",
        "COMP_WORDS": "deepvm recommend --pri",
        "COMP_CWORD": "2",
    }
    command = [str(Path(sys.executable).with_name("deepvm"))]
    found = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True)
    assert "--prices" in found.stdout
    assert found.stderr == ""


# --- variables ---


def test_variables_that_nearly_are_settings_are_mentioned(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPVM_CHECKPOINTSIZE", SECRET)
    monkeypatch.setenv("DEEPVM_XYZZY", SECRET)
    monkeypatch.setenv("DEEPVM_CACHE_DIR", "x")
    for words in (["recommend", "--pw", "3"], ["config", "show"]):
        code, out, err = run(*words)
        assert code == 0
        assert "DEEPVM_CHECKPOINTSIZE has no effect; did you mean DEEPVM_CHECKPOINT_SIZE?" in err
        assert "XYZZY" not in out + err and "CACHE" not in out + err and SECRET not in out + err


def test_every_variable_of_the_package_is_known() -> None:
    package = Path(configuration.__file__).parents[1]
    named = {
        v
        for p in package.rglob("*.py")
        for v in re.findall(r"\"(DEEPVM_[A-Z_]+[A-Z])\"", p.read_text())
    }
    assert len(named) >= 3
    assert named <= configuration.OTHER_VARIABLES | {variable_of(key_of(n)) for n in NAMES}
    assert not configuration.OTHER_VARIABLES & {variable_of(key_of(n)) for n in NAMES}


def test_another_file_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    user_file().write_text("pw = 4")
    other = tmp_path / "other.toml"
    other.write_text("pw = 5")
    assert received(RankFlags).pw == "4"
    monkeypatch.setenv("DEEPVM_CONFIG", str(other))
    assert received(RankFlags).pw == "5"
    monkeypatch.setenv("DEEPVM_CONFIG", "none")
    assert received(RankFlags).pw is None
    monkeypatch.setenv("DEEPVM_CONFIG", str(tmp_path / "missing.toml"))
    with pytest.raises(RequestError, match=r"missing\.toml"):
        read_settings(os.environ)


@pytest.mark.skipif(sys.platform != "linux", reason="the rule is copied for Linux only")
@pytest.mark.parametrize("folder", ["/srv/config", " ", None])
def test_the_users_folder_is_what_platformdirs_says(
    folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from platformdirs import user_config_path

    monkeypatch.delenv("XDG_CONFIG_HOME")
    if folder is not None:
        monkeypatch.setenv("XDG_CONFIG_HOME", folder)
    assert list(read_settings(os.environ).files)[1] == str(
        user_config_path("deepvm") / "config.toml"
    )


def test_without_files_no_toml_is_loaded() -> None:
    import subprocess

    code = "import sys\nfrom deepvm.cli.main import main\ntry: main(['recommend', '--pw', '3'])\n"
    code += "except SystemExit: pass\nprint(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.splitlines()[-1].split())
    assert "deepvm.cli.settings" in loaded
    assert not loaded & {"tomllib", "tomli", "platformdirs"}


# --- config show ---


def test_show_says_who_set_what(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("deepvm.toml").write_text('pw = 3\nregion = ["us-east-1", "us-west-2"]\nprices = "live"\n')
    user_file().write_text('pw = 4\nprofile = "work\\u001b[31m"\noffline = true\n')
    monkeypatch.setenv("DEEPVM_PRICES", "snapshot")
    code, out, err = run("config", "show", "-o", "json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema_version"] == "deepvm.config/1"
    rows = {r["key"]: (r["value"], r["kind"], r["source"]) for r in found["settings"]}
    assert list(rows) == [key_of(n) for n in NAMES]
    assert rows["pw"] == ("3", "file", "deepvm.toml")
    assert rows["region"] == (["us-east-1", "us-west-2"], "file", "deepvm.toml")
    assert rows["prices"] == ("snapshot", "environment", "DEEPVM_PRICES")
    assert rows["profile"] == ("work\x1b[31m", "file", str(user_file()))
    assert rows["offline"] == (True, "file", str(user_file()))
    assert rows["quota"] == (None, "default", "default")
    assert rows["exclude"] == ([], "default", "default")
    files = [{"path": "deepvm.toml", "found": True}, {"path": str(user_file()), "found": True}]
    assert found["files"] == files
    code, out, err = run("config", "show")
    table = {words[0]: words[1:] for line in out.splitlines() if (words := re.split(r"  +", line))}
    assert table["setting"] == ["value", "set by"]
    assert table["region"] == ["us-east-1, us-west-2", "deepvm.toml"]
    assert table["offline"] == ["true", str(user_file())]
    assert table["profile"] == ["work\\x1b[31m", str(user_file())]
    assert table["quota"] == ["-", "default"]
    assert err == f"Files: deepvm.toml (read), {user_file()} (read)\n"


def test_show_without_anything_set(run: Run) -> None:
    code, out, err = run("config", "show", "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert {r["kind"] for r in found["settings"]} == {"default"}
    assert [f["found"] for f in found["files"]] == [False, False]
    flags = received(RankFlags, "--pw", "3")
    shown = {r["key"]: r["value"] for r in found["settings"]}
    assert shown == {key_of(n): None if n == "pw" else getattr(flags, n) for n in NAMES}
    assert "deepvm.toml (not there)" in run("config", "show")[2]
