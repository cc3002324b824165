"""What every exporter must do; and writing the files, all or none."""

from __future__ import annotations

import inspect
import json
import os
import re
import stat
import sys
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.places import ROOT, TESTS
from support.plans import PLANS, SOURCE, gpu_vms, single_anchor, spot_only, tiering

from deepvm.cli.plan.export import export as command
from deepvm.core.cluster.plan import Plan, PlanSource
from deepvm.errors import DataError, RequestError
from deepvm.exporters import base
from deepvm.exporters.base import Export, Exporter, ExportFile, comment, tag, write_export
from deepvm.exporters.options import ExportOptions
from deepvm.exporters.registry import REGISTRY, SUMMARY, Tool, exporters, render
from deepvm.io.own_package import OwnPackage

GOLDEN = ROOT / "tests" / "golden"
ALL_OPTIONS = {
    "image": "ami-0123",
    "memory_image": "ami-4567",
    "key_name": "my-key",
    "subnet": ("use1-az4=subnet-1",),
    "security_group": ("sg-1",),
    "launch_template": "my-template",
    "memory_launch_template": "memory-template",
    "command": "train.py --epochs 3",
    "max_price": Decimal("12.5"),
    "job": "resnet-7",
    "persist": "s3://bucket/run",
    "package": "deepvm[train]==0.1.0",
    "code": "https://example.com/code.git@v1",
}


def options_of(engine: str) -> frozenset[str]:
    first, *_ = exporters(engine)
    return first.OPTIONS


each_engine = pytest.mark.parametrize("engine", REGISTRY)
each_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


def options(*names: str, **changes: Any) -> ExportOptions:
    chosen = {n: ALL_OPTIONS[n] for n in names}
    return ExportOptions(**(chosen | changes))


def usable(engine: str, plan: Plan) -> ExportOptions:
    """Every option that this engine and plan take."""
    names = [n for n in options_of(engine) if plan.memory is not None or not n.startswith("memory")]
    # In the place of image, key pair, security groups
    names = [n for n in names if "launch_template" not in n]
    return options(
        *names,
        **({} if plan.training.zones or "subnet" not in names else {"subnet": ("subnet-1",)}),
    )


def counts(engine: str, export: Export) -> dict[tuple[str, str], int]:
    """VMs by type and market, as the files of an engine say it."""
    return COUNTERS[engine]({f.name: f.text for f in export.files})


def _of_skypilot(files: dict[str, str]) -> dict[tuple[str, str], int]:
    found = {}
    for text in (files[name] for name in files if name.endswith(".yaml")):
        task = yaml.safe_load(text)
        for entry in task["resources"]["any_of"]:
            market = "spot" if entry["use_spot"] else "on-demand"
            found[entry["instance_type"], market] = task["num_nodes"]
    return found


def _of_fleets(files: dict[str, str]) -> dict[tuple[str, str], int]:
    found = {}
    for text in (files[name] for name in files if name.endswith("-fleet.json")):
        request = json.loads(text)
        capacity = request["TargetCapacitySpecification"]
        (only,) = {
            o["InstanceType"] for c in request["LaunchTemplateConfigs"] for o in c["Overrides"]
        }
        found[only, capacity["DefaultTargetCapacityType"]] = capacity["TotalTargetCapacity"]
    return found


def _of_terraform(files: dict[str, str]) -> dict[tuple[str, str], int]:
    found = {}
    resources = json.loads(files["main.tf.json"])["resource"]
    for fleet in resources.get("aws_ec2_fleet", {}).values():
        (target,) = fleet["target_capacity_specification"]
        (config,) = fleet["launch_template_config"]
        (only,) = {o["instance_type"] for o in config["override"]}
        found[only, target["default_target_capacity_type"]] = target["total_target_capacity"]
    for instance in resources.get("aws_instance", {}).values():
        found[instance["instance_type"], "on-demand"] = instance["count"]
    return found


def _of_torchrun(files: dict[str, str]) -> dict[tuple[str, str], int]:
    """Host files name the type and market of the lines that follow in a comment."""
    found: dict[tuple[str, str], int] = {}
    for name in ("hostfile", "memory-hosts"):
        group: tuple[str, str] | None = None
        for line in files.get(name, "").splitlines():
            heading = re.fullmatch(r"# (\d+) x (\S+) \((spot|on-demand)\)", line)
            if heading:
                group = (heading[2], heading[3])
            elif not line.startswith("#"):
                assert group is not None
                found[group] = found.get(group, 0) + 1
    return found


COUNTERS = {
    "skypilot": _of_skypilot,
    "ec2-fleet": _of_fleets,
    "terraform": _of_terraform,
    "torchrun": _of_torchrun,
}


def test_every_engine_is_tested_and_on_the_command_line() -> None:
    assert set(COUNTERS) == set(REGISTRY)
    for name in REGISTRY:
        assert (TESTS / "exporters" / f"test_{name.replace('-', '_')}.py").exists()
        assert set(ALL_OPTIONS) >= options_of(name)
    choices = get_args(inspect.signature(command).parameters["to"].annotation)
    assert list(choices) == list(REGISTRY)
    assert command.__doc__ is not None and command.__doc__.startswith(SUMMARY)
    assert all(tool.title in SUMMARY for tool in REGISTRY.values())


class Slurm(Exporter):
    FOLDER = "slurm"

    def files(self) -> Iterator[ExportFile]:
        yield self.file("job.sh")


def test_an_exporter_is_a_class_its_templates_and_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "job.sh.j2").write_text("#!/bin/sh\n#SBATCH --nodes={{ plan.rank }}\n")
    (tmp_path / "slurm" / "notes.txt.j2").write_text("start: sbatch job.sh\n")
    monkeypatch.setattr(base, "TEMPLATES", [*base.TEMPLATES, tmp_path])
    monkeypatch.setitem(REGISTRY, "slurm", Tool("Slurm", (f"{__name__}:Slurm",)))
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(Slurm=Slurm))
    base.environment.cache_clear()
    export = render(tiering(), "slurm")
    base.environment.cache_clear()
    (file,) = export.files
    assert file == ExportFile("job.sh", "#!/bin/sh\n#SBATCH --nodes=1\n") and file.executable
    assert export.notes == ("start: sbatch job.sh",)


@each_engine
@each_plan
def test_all_vms_of_the_plan_and_no_others(engine: str, plan: Plan) -> None:
    wanted = {(g.instance_type, g.market.value): g.count for g in plan.groups}
    assert counts(engine, render(plan, engine)) == wanted
    assert counts(engine, render(plan, engine, usable(engine, plan))) == wanted


@each_engine
@each_plan
def test_files_are_plain_names_with_text(engine: str, plan: Plan) -> None:
    export = render(plan, engine)
    names = [f.name for f in export.files]
    assert names and len(set(names)) == len(names)
    for file in export.files:
        assert file.name == os.path.basename(file.name) and not file.name.startswith(".")
        assert file.text.endswith("\n") and "\r" not in file.text
        assert file.executable == file.text.startswith("#!")
    assert export == render(plan, engine)


def test_a_source_that_says_little() -> None:
    def header(plan: Plan) -> str:
        return " ".join(render(plan, "torchrun").files[0].text.replace("\n#", " ").split())

    assert "Prices: catalog unnamed, undated." in header(spot_only(source=PlanSource()))
    assert "Prices: catalog mine, us-east-1, undated." in header(tiering(source=PlanSource("mine")))
    assert "Source:" not in header(spot_only(source=PlanSource()))
    basis = tiering(
        source=replace(SOURCE, basis="p95 of 30 days"), warnings=("eFLOPS are guessed",)
    )
    assert "Spot prices: p95 of 30 days." in header(basis)
    assert "Warning: eFLOPS are guessed." in header(basis)
    assert "Spot prices move" not in header(tiering(training=gpu_vms(0, 3)))


@each_engine
def test_options_that_an_engine_does_not_use_are_refused(engine: str) -> None:
    for name in ALL_OPTIONS.keys() - options_of(engine):
        with pytest.raises(RequestError) as caught:
            render(tiering(), engine, options(name))
        assert caught.value.option == name and f"--to {engine}, which takes --" in str(caught.value)


WHEEL = OwnPackage("", "/home/me/deepvm", "deepvm-0.1.0-py3-none-any.whl", b"a wheel")
GIT = OwnPackage("@git+https://example.com/deepvm.git@0123abc", "https://example.com/deepvm.git")
CARRY = ("skypilot", "torchrun")
"""Engines whose files go to the VMs."""


def installs(engine: str, options: ExportOptions, plan: Plan = PLANS["single-anchor"]) -> list[str]:
    """What pip installs, in all files of an export."""
    text = "".join(f.text for f in render(plan, engine, options).files)
    if engine == "ec2-fleet":
        files = [
            json.loads(f.text)
            for f in render(plan, engine, options).files
            if f.name.endswith("-template.json")
        ]
        text = "".join(b64decode(f["LaunchTemplateData"]["UserData"]).decode() for f in files)
    return re.findall(r'pip install --quiet \\?"\$+{DEEPVM_PACKAGE:(.*?)}\\?"', text)


@each_engine
def test_vms_get_the_deepvm_that_made_the_export(engine: str) -> None:
    assert set(installs(engine, ExportOptions())) == {"-deepvm[train]==0.1.0"}
    found = installs(engine, ExportOptions(command="train.py", own=GIT))
    assert found and set(found) == {"-deepvm[train]@git+https://example.com/deepvm.git@0123abc"}


@each_engine
def test_package_wins(engine: str) -> None:
    for own in (WHEEL, GIT, OwnPackage("")):
        export = render(
            tiering(), engine, ExportOptions(command="train.py", package="mine==2", own=own)
        )
        assert set(
            installs(engine, ExportOptions(command="train.py", package="mine==2", own=own))
        ) == {"-mine==2"}
        assert not any(f.data for f in export.files) and not any(
            "--package" in note for note in export.notes
        )


@pytest.mark.parametrize("engine", CARRY)
def test_a_deepvm_of_a_folder_here_goes_with_the_files(engine: str, tmp_path: Path) -> None:
    options = ExportOptions(command="train.py", own=WHEEL)
    export = render(tiering(), engine, options)
    assert all(f"/{WHEEL.wheel_name}[train]" in found for found in installs(engine, options))
    assert not any("--package" in note for note in export.notes)
    *_, wheel = write_export(export, tmp_path)
    assert wheel.name == WHEEL.wheel_name and wheel.read_bytes() == b"a wheel"


@pytest.mark.parametrize(
    ("engine", "own"),
    [
        *((e, WHEEL) for e in REGISTRY if e not in CARRY),
        # Fmt: skip
        *((e, OwnPackage("", "/home/me")) for e in REGISTRY),
    ],
)
def test_what_vms_cannot_have_is_refused_before_they_cost(engine: str, own: OwnPackage) -> None:
    with pytest.raises(RequestError) as caught:
        render(single_anchor(), engine, ExportOptions(command="train.py", own=own))
    assert (caught.value.option, caught.value.exit_code) == ("package", 2)
    assert f"of {own.place}: 'deepvm[train] @ git+https://" in str(caught.value)
    # Without a training to start, the image may have it: nothing of a stranger is installed in its
    # place.
    found = installs(engine, ExportOptions(own=own))
    assert found and all(each.startswith("?deepvm export --package") for each in found)
    notes = render(single_anchor(), engine, ExportOptions(own=own)).notes
    assert any(own.place in note and "--package" in note for note in notes)


@each_engine
def test_options_about_memory_nodes_need_memory_nodes(engine: str) -> None:
    for name in options_of(engine) & {"memory_image", "memory_launch_template"}:
        with pytest.raises(RequestError, match="has no memory nodes"):
            render(spot_only(), engine, options(name))


def test_an_unknown_engine() -> None:
    with pytest.raises(RequestError, match="skypilot, ec2-fleet, terraform, torchrun"):
        render(tiering(), "slurm")


@each_engine
def test_the_environment_stays_out(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HOME", "USER"):
        monkeypatch.setenv(name, "not-for-any-file")
    for plan in PLANS.values():
        export = render(plan, engine, usable(engine, plan))
        assert "not-for-any-file" not in repr(export)


@each_engine
@each_plan
def test_golden(engine: str, plan: Plan) -> None:
    export = render(plan, engine, ExportOptions() if plan.memory is None else usable(engine, plan))
    written = "".join(
        f"=== {f.name}{' (executable)' if f.executable else ''}\n{f.text}" for f in export.files
    )
    written += "=== notes\n" + "".join(f"{note}\n" for note in export.notes)
    path = GOLDEN / f"export-{engine}-{plan.architecture}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(written)
    assert written == path.read_text()


def test_a_command_with_an_open_quote() -> None:
    for text in ["'", '"a', "a\\"]:
        with pytest.raises(RequestError, match="closed quotes"):
            ExportOptions(command=text)


def test_a_command_is_the_arguments_of_torchrun() -> None:
    for text in ["python train.py", "torchrun train.py", "bash run.sh"]:
        with pytest.raises(RequestError, match="the arguments of torchrun"):
            ExportOptions(command=text)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=300), max_size=4))
def test_nothing_gets_out_of_a_comment(sentences: list[str]) -> None:
    text = comment("\n".join(sentences))
    lines = text.splitlines()
    assert all(line.startswith("#") for line in lines)
    assert len(lines) == text.count("\n")
    assert "".join(" ".join(sentences).split()) == "".join(
        "".join(part.removeprefix("#") for part in text.split("\n")).split()
    )
    assert all(len(line) <= base.COMMENT_WIDTH + 2 or " " not in line[2:].strip() for line in lines)


@each_engine
def test_nothing_in_a_plan_gets_out_of_its_place(engine: str) -> None:
    """Plans are files, and files can be written by anybody.

    Control characters do not get through the reader.
    """
    nasty = "x$(touch pwned)`id`'\"${var.region}%{if true}#: *&!|>"
    plan = tiering()
    odd = replace(
        plan,
        architecture=nasty,
        region=nasty,
        zone="",
        source=replace(SOURCE, catalog=nasty, source=nasty),
    )
    odd = replace(odd, training=replace(plan.training, instance_type=nasty), warnings=(nasty,))
    found = counts(engine, render(odd, engine)) if engine != "torchrun" else {(nasty, "spot"): 17}
    shown = nasty.replace("${", "$${").replace("%{", "%%{") if engine == "terraform" else nasty
    assert found[shown, "spot"] == 17


@given(st.text(st.characters(codec="utf-8")))
def test_tags_hold_what_aws_allows(text: str) -> None:
    value = tag(text)
    assert len(value) <= 256 and value == value.strip()
    assert all(c.isalnum() or c in " _.:/=+-@" or not c.isascii() for c in value)


def test_a_long_tag_is_cut_between_words() -> None:
    assert tag("word " * 60).endswith(" word") and len(tag("word " * 60)) == 254
    assert tag("x" * 300) == "x" * 256


FILES = Export((ExportFile("a.txt", "new a\n"), ExportFile("b.sh", "#!/bin/sh\n")))


def test_files_are_written(tmp_path: Path) -> None:
    paths = write_export(FILES, tmp_path / "deep" / "er")
    assert [p.read_text() for p in paths] == ["new a\n", "#!/bin/sh\n"]
    modes = [stat.S_IMODE(p.stat().st_mode) for p in paths]
    assert not modes[0] & 0o111 and modes[1] & 0o100
    assert sorted(p.name for p in paths[0].parent.iterdir()) == ["a.txt", "b.sh"]


def test_existing_files_are_kept_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "b.sh").write_text("mine")
    with pytest.raises(RequestError, match=r"b\.sh.*--force"):
        write_export(FILES, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["b.sh"]
    (tmp_path / "a.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RequestError, match=r"a\.txt"):
        write_export(FILES, tmp_path)
    (tmp_path / "a.txt").unlink()
    write_export(FILES, tmp_path, force=True)
    assert (tmp_path / "b.sh").read_text() == "#!/bin/sh\n"


def test_all_files_or_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old a")
    (tmp_path / "a.txt").chmod(0o640)
    (tmp_path / "b.sh").mkdir()
    with pytest.raises(DataError, match="a folder or device has this name"):
        write_export(FILES, tmp_path, force=True)
    assert (tmp_path / "a.txt").read_text() == "old a"
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "b.sh"]


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old a")
    (tmp_path / "a.txt").chmod(0o640)
    write_export(FILES, tmp_path, force=True)
    assert (tmp_path / "a.txt").read_text() == "new a\n"
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_what_was_made_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        if path.name == "b.sh":
            raise DataError("no space left on device")
        path.write_bytes(data)

    monkeypatch.setattr("deepvm.exporters.base.write_bytes", full)
    with pytest.raises(DataError, match="no space"):
        write_export(FILES, tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (
        tmp_path / "file",
        tmp_path / "file" / "below",
        tmp_path / ("x" * 300),
        Path("zero\0byte"),
    ):
        with pytest.raises((DataError, RequestError)):
            write_export(FILES, folder)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@each_engine
def test_the_network_on_which_the_speed_rests_is_asked_for_or_noted(engine: str) -> None:
    """Several p5.48xlarge are as fast as they are said to be over EFA only; one needs none."""
    plans = [replace(spot_only(), training=gpu_vms(n, instance_type="p5.48xlarge")) for n in (2, 1)]
    several, one = (render(plan, engine, options()).notes for plan in plans)
    noted = "2 x p5.48xlarge counts on EFA"
    if engine == "skypilot":
        noted = "network_tier: best asks for EFA"
    assert any(noted in note for note in several)
    assert not any("EFA" in note for note in one)


@each_engine
def test_reserved_vms_are_not_rented_a_second_time(engine: str) -> None:
    plan = spot_only()
    reserved = replace(plan, training=replace(plan.training, reserved="block-1"))
    if engine == "torchrun":
        assert render(reserved, engine).files
        return
    with pytest.raises(RequestError, match="block-1 are reserved"):
        render(reserved, engine)
