"""``deepvm export`` and ``deepvm catalog diff`` as people and scripts meet them."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from support.plans import document, text
from typer.testing import CliRunner

from deepvm.catalog.store import format_catalog, load_catalog
from deepvm.cli.catalog.group import diff
from deepvm.cli.plan.export import export
from deepvm.errors import CatalogFormatError, CatalogNotFoundError, RequestError
from deepvm.io.own_package import OwnPackage

app = typer.Typer()
app.command("export")(export)
app.command("diff")(diff)


def invoke(*words: object, given: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, [str(w) for w in words], input=given)


def good(*words: object, given: str | bytes | None = None) -> Any:
    result = invoke(*words, given=given)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def refused(*words: object, given: str | bytes | None = None) -> Exception:
    result = invoke(*words, given=given)
    assert result.exit_code and result.stdout == ""
    assert isinstance(result.exception, (RequestError, CatalogFormatError, CatalogNotFoundError)), (
        repr(result.exception)
    )
    return result.exception


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """However the deepvm that is tested was installed: as if it came from an index."""
    monkeypatch.setattr("deepvm.io.own_package.own_package", lambda: OwnPackage("==0.1.0"))
    return monkeypatch


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(text())
    return path


def test_one_file_goes_to_stdout(plan: Path) -> None:
    result = good("export", plan, "--to", "terraform")
    assert json.loads(result.stdout)["variable"]["region"]["default"] == "us-east-1"
    assert "Note: Terraform asks for image_id" in result.stderr


def test_several_files_need_a_folder(plan: Path, tmp_path: Path) -> None:
    error = refused("export", plan, "--to", "skypilot")
    assert isinstance(error, RequestError) and error.exit_code == 2
    assert error.option == "output_dir" and "training.yaml, memory.yaml" in str(error)
    result = good("export", plan, "--to", "skypilot", "--output-dir", tmp_path / "job")
    assert result.stdout == "" and f"{tmp_path / 'job' / 'training.yaml'}: written" in result.stderr
    assert f"start: cd {tmp_path / 'job'} && ./start.sh 'train.py ARGUMENTS'" in result.stderr
    assert sorted(p.name for p in (tmp_path / "job").iterdir()) == [
        "memory.yaml",
        "start.sh",
        "training.yaml",
    ]


def test_files_are_not_overwritten_unasked(plan: Path, tmp_path: Path) -> None:
    words = ["export", plan, "--to", "torchrun", "--output-dir", tmp_path]
    good(*words)
    before = (tmp_path / "hostfile").read_text()
    (tmp_path / "hostfile").write_text("filled in")
    assert "--force" in str(refused(*words))
    assert (tmp_path / "hostfile").read_text() == "filled in"
    good(*words, "--force")
    assert (tmp_path / "hostfile").read_text() == before


def test_a_plan_through_a_pipe() -> None:
    assert json.loads(good("export", "-", "--to", "terraform", given=text()).stdout)["output"]
    error = refused("export", "-", "--to", "terraform", given=b"\xff")
    assert "standard input: byte 0xff at position 0 is not UTF-8" in str(error)


def test_another_rank(plan: Path) -> None:
    found = json.loads(good("export", plan, "--to", "terraform", "--rank", 2).stdout)
    assert "anchor" in found["resource"]["aws_instance"]
    assert "the ranks of" in str(refused("export", plan, "--to", "terraform", "--rank", 9))
    for rank in ("0", "-1", "one", "1.5", "²", "9" * 30):
        assert str(refused("export", plan, "--to", "terraform", f"--rank={rank}")).startswith(
            "invalid value for rank: "
        )


def test_options_reach_the_files(plan: Path, tmp_path: Path) -> None:
    words = [
        "--image",
        "ami-1",
        "--memory-image",
        "ami-2",
        "--key-name",
        "me",
        "--security-group",
        "sg-1",
    ]
    words += [
        "--security-group",
        "sg-2",
        "--subnet",
        "use1-az4=subnet-1",
        "--subnet",
        "us-east-1b=subnet-2",
    ]
    found = json.loads(good("export", plan, "--to", "terraform", *words).stdout)["variable"]
    assert {name: body.get("default") for name, body in found.items()} == {
        "region": "us-east-1",
        "image_id": "ami-1",
        "memory_image_id": "ami-2",
        "key_name": "me",
        "security_group_ids": ["sg-1", "sg-2"],
        "subnet_ids": ["subnet-1", "subnet-2"],
    }
    words = [
        "--launch-template",
        "gpu",
        "--memory-launch-template",
        "cpu",
        "--zone",
        "use1-az1",
        "--output-dir",
        tmp_path,
    ]
    good("export", plan, "--to", "ec2-fleet", *words)
    request = json.loads((tmp_path / "memory-fleet.json").read_text())
    (config,) = request["LaunchTemplateConfigs"]
    assert config["LaunchTemplateSpecification"]["LaunchTemplateName"] == "cpu"
    assert [o["AvailabilityZoneId"] for o in config["Overrides"]] == ["use1-az1"]
    good(
        "export", plan, "--to", "torchrun", "--command", "train.py 'a b'", "--output-dir", tmp_path
    )
    assert "set -- train.py 'a b'" in (tmp_path / "launch.sh").read_text()


def test_a_deepvm_of_a_folder_here(plan: Path, tmp_path: Path, own: pytest.MonkeyPatch) -> None:
    mine = OwnPackage("", "/home/me/deepvm", "deepvm-0.1.0-py3-none-any.whl", b"PK")
    own.setattr("deepvm.io.own_package.own_package", lambda: mine)
    good("export", plan, "--to", "torchrun", "--output-dir", tmp_path / "launch")
    assert (tmp_path / "launch" / mine.wheel_name).read_bytes() == b"PK"
    words = ["export", plan, "--to", "terraform"]
    assert "of /home/me/deepvm: --package says what pip installs" in " ".join(
        good(*words).stderr.split()
    )
    error = refused(*words, "--command", "train.py")
    assert isinstance(error, RequestError) and (error.option, error.exit_code) == ("package", 2)
    wheel = "https://example.com/deepvm-0.1.0-py3-none-any.whl"
    assert wheel in good(*words, "--command", "train.py", "--package", wheel).stdout


def test_a_price_limit(plan: Path) -> None:
    words = ["export", plan, "--to", "terraform"]
    result = good(*words)
    assert (
        "Note: limit: $3.42312/h for all VMs, the plan's $2.8526/h + 20 %; --max-price sets"
        " another" in result.stderr
    )
    fleet = json.loads(good(*words, "--max-price", "3").stdout)["resource"]["aws_ec2_fleet"][
        "training"
    ]
    assert {o["max_price"] for c in fleet["launch_template_config"] for o in c["override"]} == {
        "0.165953"
    }
    error = refused(*words, "--max-price", "2.8525")
    assert isinstance(error, RequestError) and (error.option, error.exit_code) == ("max_price", 2)
    assert "2.8525" in str(error) and "at least what the plan costs, $2.8526/h" in str(error)
    for odd in ("", "0", "-3", "three", "nan", "inf"):
        assert str(refused(*words, f"--max-price={odd}")).startswith(
            "invalid value for max_price: "
        )
    assert "--to torchrun, which takes --command, --job, --package, --persist" in str(
        refused("export", plan, "--to", "torchrun", "--max-price", 3)
    )


def test_zones_above_the_limit_are_left_out_and_named(plan: Path) -> None:
    words = ["export", plan, "--to", "terraform", "--max-price", "2.8526"]
    result = good(*words)
    (zone,) = json.loads(result.stdout)["data"]["aws_availability_zone"].values()
    assert zone == {"zone_id": "use1-az4"}
    # $0.1601/h is 1.01458 times the plan's spot price, and so is this of its $2.8526/h.
    dear = (
        "left out as too dear for the limit: use1-az1 (us-east-1b) at $0.1601/h; --max-price"
        " 2.894178 takes"
    )
    assert dear in result.stderr
    assert "left out" not in good(*words[:-1], "2.894178").stderr
    assert "left out" in good(*words[:-1], "2.894177").stderr
    error = refused(*words, "--zone", "use1-az1")  # 17 x 0.1601 + 0.17
    assert "at least what it costs in use1-az1, $2.8917/h" in str(error)
    chosen = good("export", plan, "--to", "terraform", "--zone", "use1-az1").stderr
    assert "the $2.8917/h that it costs in use1-az1 + 20 %" in chosen
    error = refused(*words, "--subnet", "use1-az1=subnet-1")
    assert str(error).endswith("zones of the plan: use1-az4 (us-east-1a))")
    good(*words, "--zone", "use1-az4", "--subnet", "us-east-1a=subnet-1")
    error = refused(*words, "--zone", "use1-az4", "--subnet", "use1-az1=subnet-1")
    assert str(error).endswith("zones of the plan: use1-az4 (us-east-1a))")


def dear_zones() -> str:
    """8 x 0.21 + 0.2 = $1.88/h in use1-az2; use1-az1 has no memory nodes.

    Use1-az3 costs 2.28, asked for were 2.
    """
    changed = document()
    zones = {"use1-az1": 0.2, "use1-az2": 0.21, "use1-az3": 0.26}
    configuration = changed["configurations"][0]
    configuration["gpu"] |= {"count": 8, "spot_count": 8, "spot_usd_per_hour": 0.21}
    configuration["gpu"]["zones"] = [{"zone": z, "usd_per_hour": p} for z, p in zones.items()]
    configuration["memory"] |= {"on_demand_usd_per_hour": 0.2, "zones": ["use1-az2", "use1-az3"]}
    configuration |= {"usd_per_hour": 1.88, "zone": "use1-az2"}
    changed["request"] = {"pw_usd_per_hour": 2}
    return json.dumps(changed)


def exported_zones(*words: object, given: str) -> tuple[list[str], str]:
    result = good("export", "-", "--to", "terraform", *words, given=given)
    data = json.loads(result.stdout).get("data", {"aws_availability_zone": {}})
    return [z["zone_id"] for z in data["aws_availability_zone"].values()], result.stderr


def test_what_is_too_dear_is_said_by_the_price_limit_or_else_by_what_was_asked_for() -> None:
    """Whoever names no limit asked for at most $2/h: no VM may start where the cluster costs more
    than that today.
    """
    given = dear_zones()
    zones, notes = exported_zones("--max-price", 3, given=given)
    assert zones == ["use1-az2", "use1-az3"] and "too dear" not in notes
    assert "left out: use1-az1, because c5.xlarge is not offered there" in notes
    good(
        "export",
        "-",
        "--to",
        "terraform",
        "--max-price",
        3,
        "--subnet",
        "use1-az3=subnet-1",
        given=given,
    )
    zones, notes = exported_zones(given=given)
    assert zones == ["use1-az2"]
    assert (
        "left out: use1-az3, because there it would cost more than the $2.0000/h that was"
        " asked for" in notes
    )
    # $2.00/h
    assert exported_zones(given=given.replace("0.26", "0.225"))[0] == ["use1-az2", "use1-az3"]
    zones, notes = exported_zones("--max-price", 2.2, given=given)
    assert zones == ["use1-az2"] and "too dear for the limit: use1-az3 at $0.2600/h" in notes
    for zone in ("use1-az1", "use1-az3"):
        subnet = f"{zone}=subnet-1"
        error = refused("export", "-", "--to", "terraform", "--subnet", subnet, given=given)
        assert str(error).endswith("zones of the plan: use1-az2)")


def test_without_a_limit_to_write_what_was_asked_for_decides(tmp_path: Path) -> None:
    """SkyPilot holds no VM to a price: only where it may start keeps it within the budget."""
    notes = good(
        "export", "-", "--to", "skypilot", "--output-dir", tmp_path, given=dear_zones()
    ).stderr
    assert (
        "left out: use1-az3, because there it would cost more than the $2.0000/h that was"
        " asked for" in notes
    )
    assert "--zone or --max-price takes it anyway" in notes
    words = [
        "export",
        "-",
        "--to",
        "skypilot",
        "--output-dir",
        tmp_path,
        "--force",
        "--zone",
        "use1-az3",
    ]
    assert "left out" not in good(*words, given=dear_zones()).stderr


@pytest.mark.parametrize("to", ["ec2-fleet", "terraform", "skypilot", "torchrun"])
@pytest.mark.parametrize("on_demand", [False, True])
def test_a_zone_without_memory_nodes_is_refused(to: str, on_demand: bool, tmp_path: Path) -> None:
    changed = json.loads(dear_zones())
    if on_demand:
        changed["configurations"][0]["gpu"] |= {
            "spot_count": 0,
            "on_demand_count": 8,
            "on_demand_usd_per_hour": 0.21,
        }
        changed["configurations"][0]["zone"] = None
    words = ["export", "-", "--to", to, "--output-dir", tmp_path / "new"]
    for zones in (["use1-az1"], ["use1-az2", "--zone", "use1-az1"]):
        error = refused(*words, "--zone", *zones, given=json.dumps(changed))
        assert isinstance(error, RequestError) and (error.option, error.exit_code) == ("zone", 2)
        assert "zones that offer c5.xlarge too: use1-az2, use1-az3" in str(error)
    assert not (tmp_path / "new").exists()
    good(*words, "--zone", "use1-az2", given=json.dumps(changed))


def test_the_zone_to_start_in_has_memory_nodes() -> None:
    given = dear_zones().replace('"zone": "use1-az2", "warn', '"zone": "use1-az1", "warn')
    assert exported_zones("--max-price", 3, given=given)[0] == ["use1-az2", "use1-az3"]


def test_where_zones_have_no_prices_the_offers_are_told(plan: Path, tmp_path: Path) -> None:
    changed = json.loads(dear_zones())
    changed["configurations"][0]["gpu"]["zones"] = None
    changed["configurations"][0]["zone"] = None
    given = json.dumps(changed)
    for words in (["--to", "terraform"], ["--to", "ec2-fleet", "--output-dir", tmp_path]):
        notes = good("export", "-", *words, given=given).stderr
        assert (
            "c5.xlarge is offered in use1-az2, use1-az3 only: name subnets there with --subnet"
            in notes
        )
        words += ["--subnet", "subnet-1", "--force"]
        assert "is offered in" not in good("export", "-", *words, given=given).stderr
    error = refused("export", "-", "--to", "terraform", "--zone", "use1-az1", given=given)
    assert "this plan was made from prices without zones; --subnet decides where it starts" in str(
        error
    )


def test_a_limit_above_what_was_asked_for_is_said() -> None:
    changed = document()
    changed["request"] = {"pw_usd_per_hour": 3}
    notes = good("export", "-", "--to", "terraform", given=json.dumps(changed)).stderr
    assert "+ 20 %; --max-price sets another, such as the $3/h that the plan was asked for" in notes


def test_a_limit_that_cannot_be_split_or_is_none(plan: Path) -> None:
    """The second configuration tells no prices of its VMs."""
    words = ["export", plan, "--to", "terraform", "--rank", 2]
    result = good(*words)
    assert "no price limit is set: the plan does not tell the prices" in result.stderr
    assert "max_price" not in result.stdout and "nothing here limits them" in result.stdout
    assert "so the limit cannot be split" in str(refused(*words, "--max-price", 5))


def test_aws_takes_no_limit_of_a_tenth_of_a_cent() -> None:
    changed = document()
    configuration = changed["configurations"][0]
    configuration["gpu"] |= {"spot_usd_per_hour": 0.0005, "zones": None}
    configuration |= {"memory": None, "usd_per_hour": 0.0085, "zone": None}
    error = refused("export", "-", "--to", "terraform", given=json.dumps(changed))
    assert "$0.000600/h for each spot VM, and AWS accepts only more than 0.001" in str(error)
    good("export", "-", "--to", "terraform", "--max-price", "0.0171", given=json.dumps(changed))


@pytest.mark.parametrize("subnet", ["", "=subnet-1", "use1-az4="])
def test_a_subnet_without_a_name(plan: Path, subnet: str) -> None:
    assert "ZONE=SUBNET or SUBNET" in str(
        refused("export", plan, "--to", "terraform", "--subnet", subnet)
    )


def test_a_folder_of_code_is_found_wherever_both_folders_go(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SkyPilot counts paths from where it is called: ``start.sh`` calls it in its folder."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "project" / "src").mkdir(parents=True)
    (here / "project" / "src" / "train.py").touch()
    monkeypatch.chdir(here / "project")
    for code, workdir in (("src", "../src"), (".", "..")):
        words = ["--code", code, "--output-dir", "job", "--force"]
        assert f"{workdir} as seen from" in good("export", plan, "--to", "skypilot", *words).stderr
        task = (here / "project" / "job" / "training.yaml").read_text()
        assert f"\nworkdir: {workdir}\n" in task and str(tmp_path) not in task
    good("export", plan, "--to", "skypilot", "--code", "src", "--output-dir", "job", "--force")
    here.rename(there)
    assert (there / "project" / "job" / "../src" / "train.py").exists()


def test_an_option_of_another_engine(plan: Path) -> None:
    error = refused("export", plan, "--to", "torchrun", "--image", "ami-1")
    takes = "--command, --job, --package, --persist"
    assert str(error) == f"image does not go with --to torchrun, which takes {takes}"


def test_bad_plans(tmp_path: Path) -> None:
    assert isinstance(
        refused("export", tmp_path / "none.json", "--to", "skypilot"), CatalogFormatError
    )
    changed = document()
    changed["configurations"] = []
    changed["reason"] = "no cluster costs at most $0.1/h"
    error = refused("export", "-", "--to", "skypilot", given=json.dumps(changed))
    assert "the plan has no configuration: no cluster costs at most $0.1/h" in str(error)
    assert isinstance(error, CatalogFormatError) and error.exit_code == 4


def test_an_unknown_tool_is_a_usage_error(plan: Path) -> None:
    result = invoke("export", plan, "--to", "slurm")
    assert result.exit_code == 2 and "ec2-fleet" in result.stderr


def changed_copy(tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    found = json.loads(format_catalog(load_catalog("paper"), ".json")[0])
    found["instances"][0]["spot_usd_per_hour"] = 0.25
    path.write_text(json.dumps(found))
    return path


def test_diff_forms(tmp_path: Path) -> None:
    mine = changed_copy(tmp_path)
    found = json.loads(good("diff", "paper", mine, "-o", "json").stdout)
    assert (
        found["schema_version"] == "deepvm.diff/1"
        and found["changed"]
        and not found["added"] + found["removed"]
    )
    (price,) = found["prices"]
    assert (price["market"], price["new_usd_per_hour"]) == ("spot", 0.25) and not found["figures"]
    (row,) = csv.DictReader(io.StringIO(good("diff", "paper", mine, "-o", "csv").stdout))
    assert (row["change"], row["new"]) == ("price", "0.25")
    assert "Prices: 1 change" in good("diff", "paper", mine).stdout
    assert json.loads(good("diff", "paper", "paper", "-o", "json").stdout)["changed"] is False
    assert "No difference" in good("diff", "paper", "paper").stdout


def test_diff_exit_codes(tmp_path: Path) -> None:
    mine = changed_copy(tmp_path)
    assert invoke("diff", "paper", mine).exit_code == 0
    assert invoke("diff", "paper", mine, "--fail-on-change").exit_code == 1
    assert invoke("diff", "paper", "paper", "--fail-on-change").exit_code == 0
    assert isinstance(refused("diff", "paper", "papre"), CatalogNotFoundError)


def test_importing_the_commands_loads_nothing_heavy() -> None:
    code = (
        "import sys, deepvm.cli.plan.export, deepvm.cli.catalog.group;print([m for m in ('numpy',"
        " 'pydantic.main', 'deepvm.core.cluster.instances', 'yaml') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
