"""The shared options: declared once, offered by every command that plans, handed on whole."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from support.command import Run
from support.places import GOLDEN_FOLDER

from deepvm.catalog.market.build_catalog import MarketRequest
from deepvm.catalog.store import load_catalog
from deepvm.cli import app as commands
from deepvm.cli.parameters import long_name, takes_flags
from deepvm.cli.plan.sweep import ExplainFlags, SweepFlags
from deepvm.core.options import default_of, option, option_of
from deepvm.errors import RequestError
from deepvm.planner.options import RankOptions
from deepvm.planner.request import PlanRequest
from deepvm.services.open_catalogs import CatalogOpener
from deepvm.services.plan_options import PlanFlags, RankFlags

GOLDEN = GOLDEN_FOLDER
PLANNING = {"recommend": RankFlags, "explain": ExplainFlags, "sweep": SweepFlags}


def parse(record: type[PlanFlags], *words: str) -> PlanFlags:
    """What a command with these options receives for a command line."""
    seen: list[PlanFlags] = []

    def command(flags: Any) -> None:
        seen.append(flags)

    command.__annotations__["flags"] = record
    app = typer.Typer(rich_markup_mode=None)
    app.command()(takes_flags(command))
    typer.main.get_command(app).main(list(words), standalone_mode=False)
    assert len(seen) == 1 and type(seen[0]) is record
    return seen[0]


@pytest.mark.parametrize("name", PLANNING)
def test_help_is_what_it_was(name: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """``WRITE_GOLDEN=1`` writes it anew."""
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = run(name, "--help")
    path = GOLDEN / f"help-{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(out)
    assert (code, err) == (0, "")
    assert out == path.read_text()


def options_of(record: type[PlanFlags]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(record) if option_of(field)]


def test_every_field_is_an_option_with_its_name() -> None:
    for name, record in PLANNING.items():
        command = commands.load(next(e for e in commands.COMMANDS if e.name == name))
        offered = {p.name: p.opts for p in command.params if p.param_type_name == "option"}
        for field in options_of(record):
            assert flag_of(field) in offered[field.name]


def flag_of(field: dataclasses.Field[Any]) -> str:
    about = option_of(field)
    assert about is not None
    return f"--{long_name(field.name, about)}"


def planned(flags: PlanFlags) -> PlanFlags:
    opener = CatalogOpener(flags, print, print, print, lambda name: "")
    return opener.planned(load_catalog("paper"))


def asked(flags: PlanFlags) -> dict[str, Any]:
    found = planned(flags)
    return {field.name: getattr(found, field.name) for field in dataclasses.fields(RankOptions)}


def test_the_defaults_are_the_planners() -> None:
    flags = parse(RankFlags, "--pw", "3")
    assert PlanRequest.parse(flags.pw, planned(flags)) == PlanRequest.parse(3)
    assert flags.market() == MarketRequest()
    assert flags.regions == ()


TOGETHER = ("epochs", "dataset_size")
"""Options that one cannot give alone."""
_MODEL = ["--model", "llama-8b"]
OF_A_MODEL = {
    **dict.fromkeys(("seq", "method", "precision", "batch_per_gpu", "global_batch"), _MODEL),
    **dict.fromkeys(
        ("activation_checkpointing", "tokens", "samples", "software", "placement_group"), _MODEL
    ),
}
"""Options that say something of a model, which must be named."""


def test_every_option_is_handed_on(tmp_path: Path) -> None:
    """Each option changes what the planner or the market is asked.

    --pw and --catalog are passed by hand.
    """
    for field in options_of(RankFlags):
        if field.name in ("pw", "catalog", *TOGETHER):
            continue
        before = ["--pw", "3", *OF_A_MODEL.get(field.name, [])]
        plain = parse(RankFlags, *before)
        words = {"days": "7", "quota": "none", "region": "eu-west-1", "network": "baseline"}
        (tmp_path / "job.yaml").write_text("steps: 10\nstep_s: 1\n")
        words["job_file"] = str(tmp_path / "job.yaml")
        words |= {"model": "gpt2", "params": "7B", "cloud": "gcp", "source": "gpuhunt"}
        words |= {"disk_type": "gp2", "exclude_cost": "disk"}
        words |= dict.fromkeys(("disk", "egress", "bucket"), "4GB")
        word = words.get(field.name) or next(iter(other_words(field)), "4")
        changed = parse(RankFlags, *before, flag_of(field), *([word] if word != "!" else []))
        differs = [
            (changed.market(), changed.regions, changed.clouds, changed.placement_scores)
            != (plain.market(), plain.regions, plain.clouds, plain.placement_scores),
            asked(changed) != asked(plain),
            (changed.tables, changed.workload, changed.simulate)
            != (plain.tables, plain.workload, plain.simulate),
            (changed.reserved, changed.savings_plan) != (plain.reserved, plain.savings_plan),
        ]
        assert sum(differs) == 1, field.name


def other_words(field: dataclasses.Field[Any]) -> list[str]:
    """Words that an option takes and that are not its default; ``!`` for a switch."""
    about = option_of(field)
    assert about is not None
    if about.kind is bool:
        return ["!"]
    return [word for word in about.choices if word != default_of(field)]


def test_wrong_values_name_option_value_and_range(run: Run) -> None:
    for words, named in [
        (["--days", "0"], "--days: '0'"),
        (["--days", "91"], "1 to 90"),
        (["--days", "1.5"], "--days: '1.5'"),
        (["--days", "\u0663"], "--days"),
        (["--days", "9" * 5000], "--days"),
        (["--region", "all", "--region", "us-east-1"], "--region: 'all'"),
        (["--offline", "--prices", "live"], "--prices does not go with --offline"),
        (["--prices", "yesterday"], "snapshot"),
        (["--price-basis", "p99"], "p95"),
        (["--network", "fast"], "baseline"),
        (["--cpu-arch", "sparc"], "arm64"),
        (["--generation", "next"], "current"),
        (["--gpu-memory-min", "lots"], "--gpu-memory-min: 'lots'"),
        (["--gpu-memory-max", "16"], "--gpu-memory-max: '16'"),
        (
            ["--gpu-total-memory-min", "2TB", "--gpu-total-memory-max", "1TB"],
            "--gpu-total-memory-max: '1TB'",
        ),
        (["--gpus-min", "0"], "--gpus-min: '0'"),
        (["--gpus-max", "many"], "--gpus-max: 'many'"),
    ]:
        for command in [["recommend"], ["explain", "g5.xlarge"], ["sweep"]]:
            code, out, err = run(*command, "--pw", "3", *words)
            assert (code, out) == (2, "")
            assert named in err


@given(
    regions=st.lists(st.sampled_from(["us-east-1", "eu-west-1", "", "ap-south-1"])),
    days=st.integers(1, 90),
    zone=st.sampled_from(["", "use1-az1"]),
)
def test_a_market_has_no_region_twice(regions: list[str], days: int, zone: str) -> None:
    flags = ExplainFlags(pw="3", region=regions, days=str(days), zone=zone)
    assert sorted(flags.regions) == sorted({r for r in regions if r})
    assert [r for r in regions if r][:1] == list(flags.regions[:1])
    assert (flags.market().days, flags.market().zone) == (days, zone)


def test_all_regions_alone() -> None:
    assert ExplainFlags(pw="3", region=["all", "", "all"]).regions == ("all",)
    with pytest.raises(RequestError, match="all"):
        _ = ExplainFlags(pw="3", region=["us-east-1", "all"]).regions


def test_switches_can_be_taken_back() -> None:
    for name in ("offline", "estimates", "burstable", "placement-scores"):
        field = name.replace("-", "_")
        assert getattr(parse(ExplainFlags, "--pw", "3", f"--{name}"), field) is True
        no = parse(ExplainFlags, "--pw", "3", f"--{name}", f"--no-{name}")
        assert getattr(no, field) is False


def test_a_command_keeps_its_own_parameters_where_they_stand() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Two:
        first: int = option(1, "One.", kind=int)
        second: list[str] = option(["x"], "Several.")

    seen: list[Any] = []

    def command(before: str, flags: Any, after: int = 5) -> None:
        """What it does."""
        seen.append((before, flags, after))

    command.__annotations__["flags"] = Two
    made = takes_flags(command)
    assert (made.__name__, made.__doc__) == ("command", "What it does.")
    assert list(made.__signature__.parameters) == ["before", "first", "second", "after"]  # type: ignore[attr-defined]
    made(before="b", first=2, second=["y"], after=6)
    assert seen == [("b", Two(first=2, second=["y"]), 6)]


def test_a_function_without_a_record_of_options_is_refused() -> None:
    def command(name: str) -> None: ...

    with pytest.raises(TypeError, match=r"command\(\) takes no dataclass"):
        takes_flags(command)


# --- the table of commands ---


def test_every_command_of_the_table_can_be_loaded(run: Run) -> None:
    for entry in commands.COMMANDS:
        assert commands.load(entry).name == entry.name
        code, out, _ = run(entry.name, "--help")
        assert code == 0
        assert out.startswith(f"Usage: deepvm {entry.name}")
        listed = out.partition("Commands:\n")[2].splitlines()
        assert not [line for line in listed if line.endswith("...")], (
            "a sentence was cut: give it a short_help"
        )


def test_help_lists_every_command_in_a_line_of_80(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("--help")[1].splitlines()
    shown = lines[lines.index("Commands:") + 1 :][: len(commands.COMMANDS)]
    assert [line.split(maxsplit=1) for line in shown] == [
        [e.name, e.help] for e in commands.COMMANDS
    ]


def test_a_command_that_is_typed_wrongly(run: Run) -> None:
    code, _, err = run("recomend")
    assert code == 2
    assert "Did you mean 'recommend'?" in err


def test_help_and_one_command_load_nothing_of_the_others() -> None:
    def loaded(*words: str) -> set[str]:
        code = (
            "import sys\nfrom deepvm.cli.main import main\ntry: main(sys.argv[1:])\nexcept"
            " SystemExit: pass\n"
        )
        code += "print(' '.join(m for m in sys.modules if m.startswith('deepvm.cli.')))"
        found = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        return {m.rpartition(".")[2] for m in found.stdout.splitlines()[-1].split()}

    assert loaded("--help") == {"main", "app"}
    catalog = loaded("catalog", "list")
    assert "group" in catalog and not catalog & {"recommend", "sweep", "config"}
    assert "sweep" in (found := loaded("sweep", "--help")) and "recommend" not in found


def test_the_shell_completes_names_and_options() -> None:
    def completed(*words: str) -> list[str]:
        environ = {
            "_DEEPVM_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        command = [str(Path(sys.executable).with_name("deepvm"))]
        return re.split(
            r"\s+",
            subprocess.run(
                command, env=os.environ | environ, capture_output=True, text=True
            ).stdout,
        )

    assert "recommend" in completed("deepvm", "rec")
    assert {"--prices", "--price-basis"} <= set(completed("deepvm", "sweep", "--pri"))
    assert "simulated" in completed("deepvm", "recommend", "--catalog", "sim")


def test_what_says_something_of_a_model_is_refused_without_one(run: Run) -> None:
    for words in [
        "--method fsdp",
        "--precision fp8",
        "--software compiled",
        "--placement-group",
        "--dataset-size 5M",
    ]:
        code, out, err = run("recommend", "--pw", "3", "--catalog", "paper", *words.split())
        assert (code, out) == (2, "") and f"{words.split()[0]} needs --model or --params" in err


@pytest.mark.parametrize(("words", "said"), [("abc", "--pw: 'abc'"), ("3x --top 1", "--pw: '3x'")])
def test_a_first_word_is_the_budget(words: str, said: str, run: Run) -> None:
    code, out, err = run("recommend", *words.split(), "--catalog", "paper")
    assert (code, out) == (2, "") and said in err
