"""``recommend --cloud``: other clouds by their public catalogs, and several in one table."""

from __future__ import annotations

import csv
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.public_catalogs import PublicServer, public_server, skypilot_file
from support.spot_advisor import say

BY_HAND = {
    # GCP's rows of the sample: host + GPUs, spot and on demand
    "a2-highgpu-1g": ("1.80385", "3.67339"),
    "a2-highgpu-8g": ("14.4308", "29.38708"),
    "a2-ultragpu-1g": ("2.51378", None),
    "a3-highgpu-8g": ("26.83013", None),
    "g2-standard-4": ("0.28152", "0.70674"),
    "g2-standard-48": ("1.59344", "4.00056"),
    "n2-standard-8": ("0.0938", "0.38847"),
    "n2-standard-16": ("0.1876", "0.77694"),
}


RESNET = ("--model", "resnet50")


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PublicServer]:
    with public_server() as found:
        monkeypatch.setenv("DEEPVM_SKYPILOT_URL", found.url)
        monkeypatch.setenv("DEEPVM_GPUHUNT_URL", found.url)
        monkeypatch.setenv("DEEPVM_CACHE_DIR", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield found


def plan(run: Run, *words: str) -> dict[str, Any]:
    code, out, err = run("recommend", *words, "-o", "json")
    assert code in (0, 4), err
    found: dict[str, Any] = json.loads(out)
    assert code == (4 if "left_out" in found else 0)
    return found


def by_hand(configuration: dict[str, Any]) -> Decimal:
    """What a cluster costs by the prices that were added up by hand."""
    gpu, total = configuration["gpu"], Decimal(0)
    groups = [(gpu["instance_type"], gpu["spot_count"], gpu["on_demand_count"])]
    if (memory := configuration["memory"]) is not None:
        groups.append((memory["instance_type"], 0, memory["vm_count"]))
    for name, spot, on_demand in groups:
        for count, price in zip((spot, on_demand), BY_HAND[name], strict=True):
            total += count * Decimal(price or "nan") if count else 0
    return total


def test_prices_of_gcp_are_those_of_a_calculation_by_hand(run: Run) -> None:
    for budget in ["3", "10", "30"]:
        found = plan(run, "--cloud", "gcp", "--pw", budget, "--top", "6", "--extrapolate")
        named = {c["gpu"]["instance_type"] for c in found["configurations"]}
        assert named and {n[:2] for n in named} <= {"a2", "a3", "g2"}
        for configuration in found["configurations"]:
            assert (
                Decimal(str(configuration["usd_per_hour"]))
                == by_hand(configuration)
                <= Decimal(budget)
            )


def test_each_cloud_has_its_own_machines(run: Run) -> None:
    found = plan(run, "--cloud", "all", "--pw", "30", "--top", "9")
    clouds = [r["cloud"] for r in found["regions"]]
    assert sorted(clouds) == ["aws", "azure", "gcp", "lambda", "nebius", "runpod"]
    types = {
        "aws": ("g", "p", "c", "t"),
        "gcp": ("a2", "a3", "g2", "n2"),
        "azure": ("Standard",),
        "lambda": ("gpu_", "cpu_"),
        "nebius": ("gpu-", "cpu-"),
        "runpod": ("1x", "2x", "4x", "8x"),
    }
    for row in (*found["configurations"], *(r["best"] for r in found["regions"])):
        names = [
            row["gpu"]["instance_type"],
            *([row["memory"]["instance_type"]] if row["memory"] else []),
        ]
        assert all(n.startswith(types[row["cloud"]]) for n in names), row


def test_several_clouds_are_rows_of_one_table(run: Run, server: PublicServer) -> None:
    code, out, err = run(
        "recommend", "--cloud", "gcp", "--cloud", "nebius", "--cloud", "lambda", "--pw", "30"
    )
    assert code == 0
    rows = [
        line for line in out.splitlines() if line.startswith(("Google Cloud", "Nebius", "Lambda"))
    ]
    assert len(rows) == 3 and "us-central1" in " ".join(rows)
    assert "from skypilot-catalog" in err and "AWS" not in err
    assert len(server.asked) == 3


def test_the_age_of_a_file_without_a_date_is_not_invented(run: Run, server: PublicServer) -> None:
    """GitHub's raw files bear none: they are as old as their publisher lets them get, at most."""
    server.answers["/v8/gcp/vms.csv"] = say(skypilot_file("gcp"))
    _, out, _ = run("catalog", "refresh", "--cloud", "gcp")
    assert "at most 7 h" in out
    _, out, err = run("recommend", "--cloud", "gcp", "--cloud", "nebius", "--pw", "30")
    ages = {line.split()[0]: line for line in out.splitlines() if line.endswith(" old")}
    assert ages["Google"].endswith("at most 7 h old") and "at most" not in ages["Nebius"]
    assert "or later, from skypilot-catalog" in err
    signals = plan(run, "--cloud", "gcp", "--pw", "30")["source"]["signals"]
    assert {s.get("dated") for s in signals if s["source"] == "skypilot-catalog"} == {False}
    _, out, _ = run("catalog", "status", "--cloud", "gcp", "--cloud", "nebius", "-o", "json")
    kept = {
        (row["cloud"], row["source"]): row["dated"] for row in json.loads(out)["public_catalogs"]
    }
    assert kept["gcp", "skypilot"] is False and kept["gcp", "gpuhunt"] is None
    assert "at most 7 h" in run("catalog", "status", "--cloud", "gcp")[1]


def test_the_best_of_all_comes_first(run: Run) -> None:
    both = plan(run, "--cloud", "gcp", "--cloud", "nebius", "--pw", "30")
    alone = [plan(run, "--cloud", c, "--pw", "30")["configurations"][0] for c in ("gcp", "nebius")]
    assert both["configurations"][0]["throughput"] == max(c["throughput"] for c in alone)
    assert "cloud" not in alone[0], "of one cloud nothing is said"


def test_a_cloud_without_an_answer_is_left_out(run: Run, server: PublicServer) -> None:
    server.answers["/v8/nebius/vms.csv"] = say(b"<html>", 503)
    named = ("recommend", "--source", "skypilot", "--pw", "10", "--cloud")
    code, out, err = run(*named, "gcp,nebius")
    assert code == 4 and "Nebius is left out" in err and "503" in err and "g2-standard" in out
    code, _, err = run(*named, "nebius")
    assert code == 5 and "503" in err


def test_the_json_names_a_cloud_without_the_region(run: Run) -> None:
    found = plan(run, "--cloud", "gcp,aws", "-r", "us-east1", "--offline", "--pw", "3")
    (left_out,) = found["left_out"]
    assert set(left_out) == {"cloud", "region", "reason"}
    assert (left_out["cloud"], left_out["region"]) == ("gcp", "")
    assert "region us-east1" in left_out["reason"]
    assert "deepvm catalog refresh --cloud gcp" in left_out["reason"]
    assert found["configurations"][0]["region"] == "us-east-1", "AWS's region of this name"
    assert "left_out" not in plan(run, "--cloud", "gcp,aws", "--offline", "--pw", "3")


def test_the_snapshot_of_a_cloud_is_used_without_an_answer(run: Run, server: PublicServer) -> None:
    server.answers["/v8/nebius/vms.csv"] = say(b"<html>", 503)
    code, _, err = run("recommend", "--cloud", "gcp", "--cloud", "nebius", "--pw", "10")
    assert code == 0 and "left out" not in err
    assert "prices are of 2026-06-01" in err and "in part from skypilot-catalog" in err


def test_what_comes_next_works_with_the_cloud_of_the_plan(run: Run, tmp_path: Path) -> None:
    """Jobs run on AWS alone: no other plan is sent there."""
    _, out, _ = run("recommend", "--cloud", "gcp", "--pw", "10")
    out = " ".join(out.split())
    assert (
        "deepvm run" not in out
        and "deepvm export plan.json --to skypilot --output-dir launch" in out
    )
    _, out, _ = run("recommend", "--cloud", "aws", "--pw", "10")
    assert "deepvm run --help" in out
    _, out, _ = run("recommend", "--cloud", "gcp", "--pw", "10", "-o", "json")
    (tmp_path / "plan.json").write_text(out)
    code, _, err = run("run", str(tmp_path / "plan.json"), "--dry-run", "--", "python", "train.py")
    assert code == 2 and "a plan of AWS" in err and "deepvm export" in err and "Google Cloud" in err
    assert (
        run(
            "export",
            str(tmp_path / "plan.json"),
            "--to",
            "skypilot",
            "--output-dir",
            str(tmp_path / "launch"),
        )[0]
        == 0
    )


@pytest.mark.parametrize(
    ("cloud", "tool", "wanted"),
    [
        ("gcp", "terraform", ['"disk_type": "pd-ssd"', '"disk_size_gb": 200']),
        ("gcp", "skypilot", ["disk_size: 200", "the plan counts 200 GB of pd-ssd"]),
        ("aws", "skypilot", ["disk_size: 200"]),
        ("aws", "ec2-fleet", ["the plan counts 200 GB of gp2: name it"]),
        (
            "aws",
            "terraform",
            ["spot VMs have the disk of their image; the plan counts 200 GB of gp2"],
        ),
    ],
)
def test_exports_ask_for_the_disk_that_the_plan_counts(
    run: Run, tmp_path: Path, cloud: str, tool: str, wanted: list[str]
) -> None:
    """Or say that they do not."""
    words = [
        "--cloud",
        cloud,
        "--pw",
        "10",
        "--disk",
        "199.5GB",
        "--disk-type",
        "pd-ssd" if cloud == "gcp" else "gp2",
    ]
    (tmp_path / "plan.json").write_text(json.dumps(plan(run, *words, "--nat")))
    code, out, err = run(
        "export",
        str(tmp_path / "plan.json"),
        "--to",
        tool,
        "--output-dir",
        str(tmp_path / "launch"),
    )
    files = "".join(
        path.read_text(errors="replace")
        for path in (tmp_path / "launch").iterdir()
        if path.suffix != ".whl"
    )
    assert code == 0 and all(one in files + out + err for one in wanted), (files, err)
    assert "NAT gateway" in out + err


def test_terraform_asks_for_disks_of_vms_on_demand(run: Run, tmp_path: Path) -> None:
    words = [
        "--cloud",
        "aws",
        "--pw",
        "10",
        "--disk",
        "200GB",
        "--disk-type",
        "gp2",
        "--architecture",
        "on-demand",
    ]
    (tmp_path / "plan.json").write_text(json.dumps(plan(run, *words)))
    code, out, err = run("export", str(tmp_path / "plan.json"), "--to", "terraform")
    assert code == 0, err
    (vms,) = json.loads(out)["resource"]["aws_instance"].values()
    assert (
        vms["root_block_device"] == [{"volume_size": 200, "volume_type": "gp2"}]
        and "disk of their image" not in err
    )


def test_the_quota_that_is_needed_is_named_as_the_cloud_counts_it(run: Run) -> None:
    for cloud, said in [
        (
            "gcp",
            (
                r"ask Google Cloud for \d+ preemptible (L4|A100) GPUs in the region, \d+ GPUs"
                r" in all regions; a new account has 0 GPUs"
            ),
        ),
        ("azure", r"ask Azure for \d+ spot vCPUs in the region; what a new account has is not"),
        ("lambda", ""),
    ]:
        _, out, _ = run("recommend", "--cloud", cloud, "--pw", "10", "--model", "resnet50")
        assert re.search(said, " ".join(out.split())) if said else "quota" not in out


def test_a_silent_source_is_waited_for_once_however_many_clouds_and_regions(
    run: Run, server: PublicServer
) -> None:
    for cloud in ("aws", "gcp", "lambda", "nebius"):
        server.answers[f"/v8/{cloud}/vms.csv"] = lambda _: time.sleep(12)
    clouds = [word for cloud in ("gcp", "nebius", "lambda", "aws") for word in ("--cloud", cloud)]
    start = time.monotonic()
    code, _, err = run("recommend", *clouds, "--region", "all", "--pw", "10")
    assert 1.5 < time.monotonic() - start < 6, "two seconds, and what the answer takes"
    assert code == 0 and len(server.asked) == 1, "AWS's snapshot came along"
    assert "left out" not in err, "and those of the others"
    assert not re.search(r"/v8/(?!gcp)", err), "nobody is told of another cloud's file"


def test_one_cloud_of_which_nothing_is_at_hand_is_waited_for_longer(
    run: Run, server: PublicServer
) -> None:
    server.answers["/v8/gcp/vms.csv"] = late(3, skypilot_file("gcp"))
    assert run("recommend", "--cloud", "gcp", "--pw", "10")[0] == 0
    assert len(server.asked) == 1


def late(seconds: float, body: bytes) -> Any:
    def answer(handler: Any) -> None:
        time.sleep(seconds)
        say(body)(handler)

    return answer


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pw", "-3"), "--pw: '-3'"),
        (("--pw", "3", "--disk", "-5GB"), "--disk: '-5GB' (expected 0, or a size above 0"),
        (("--pw", "3", "--exclude-cost", "foo"), "--exclude-cost: 'foo'"),
        (("--pw", "3", "--savings-plan", "200%"), "--savings-plan: '200%'"),
        (("--pw", "3", "--reserved", "/none.json"), "/none.json: does not exist"),
        (("--pw", "3", "--mttp", "soon"), "--mttp: 'soon'"),
        (("--pw", "3", "--deadline", "soon"), "--deadline: 'soon'"),
        (("--pw", "3", "--total-budget", "much"), "--total-budget: 'much'"),
        (("--pw", "3", "--model", "gtp2"), "--model: 'gtp2'"),
        (("--pw", "3", "--max-nodes", "0"), "--max-nodes: '0'"),
    ],
)
def test_nobody_waits_for_prices_to_be_told_of_a_slip(
    run: Run, server: PublicServer, words: tuple[str, ...], said: str
) -> None:
    for command in (("recommend",), ("sweep",), ("explain", "g5.xlarge")):
        if "--disk" in words or "--exclude-cost" in words:
            command = ("recommend",)
        if command == ("sweep",) and words == ("--pw", "-3"):
            continue  # which takes a range
        code, out, err = run(*command, *words)
        assert (code in (2, 4), out) == (True, "") and said in err, (command, err)
    assert not server.asked


def test_a_kind_of_disk_without_a_size_is_noted(run: Run) -> None:
    code, _, err = run("recommend", "--pw", "3", "--disk-type", "gp3")
    assert code == 0 and "--disk-type gp3 has no effect without --disk" in err


def test_clouds_may_be_listed_with_commas(run: Run) -> None:
    both = ("--cloud", "gcp", "--cloud", "nebius")
    listed, repeated = (
        plan(run, "--pw", "10", *words) for words in (("--cloud", "gcp, nebius"), both)
    )
    best = [
        [(c["cloud"], c["gpu"]["instance_type"]) for c in found["configurations"]]
        for found in (listed, repeated)
    ]
    assert best[0] == best[1]


def test_another_cloud_that_comes_first_for_a_little_more_is_named(run: Run) -> None:
    """8 H100 of Nebius cost $10.00/h by the sample, one costs 1.25."""
    code, out, err = run("recommend", "--cloud", "nebius,aws", "--pw", "9.99", *RESNET)
    assert code == 0, err
    assert re.search(r"^AWS .* 9\.87 ", out, re.MULTILINE)
    assert "for $10.00/h Nebius comes first: 1 x gpu-h100-sxm_8gpu-128vcpu-1600gb (spot)" in out
    for budget in ("10", "8"):  # it is first; it is too far
        assert (
            "comes first:"
            not in run("recommend", "--cloud", "nebius,aws", "--pw", budget, *RESNET)[1]
        )


def test_what_is_said_to_come_first_for_a_little_more_does(run: Run) -> None:
    """Also beside a cloud that lists machines whether or not it has any, which is first if it is a
    quarter better.
    """
    seen = set()
    for budget in ("5.8", "6", "6.2", "9", "9.5", "9.9"):
        _, out, _ = run("recommend", "--cloud", "lambda,nebius,aws", "--pw", budget, *RESNET)
        said = re.search(r"for \$(\S+)/h (\w+) comes first", out)
        if said:
            _, then, _ = run("recommend", "--cloud", "lambda,nebius,aws", "--pw", said[1], *RESNET)
            row = next(
                line
                for line in then.splitlines()
                if line.startswith(("AWS ", "Lambda ", "Nebius "))
            )
            assert row.startswith(said[2]), (budget, said[0])
            seen.add(said[2])
    assert seen, "of six budgets there is one"


def test_other_commands_take_one_cloud(run: Run) -> None:
    code, out, err = run("gpus", "--cloud", "gcp", "--gpu", "L4")
    assert code == 0 and "g2-standard-4" in out, err
    code, out, err = run(
        "survive",
        "--cloud",
        "gcp",
        "--instance-type",
        "g2-standard-4",
        "--count",
        "2",
        "--for",
        "4h",
    )
    assert code == 0 and "on the spot market of us-central1" in out, err
    for words, said in (
        (("--cloud", "gcp,aws"), "expected one cloud"),
        (("--cloud", "gcp", "--catalog", "paper"), "--cloud does not go with --catalog paper"),
    ):
        code, _, err = run("gpus", *words)
        assert code == 2 and said in err
    code, _, err = run(
        "survive", "--cloud", "lambda", "--instance-type", "x", "--count", "2", "--for", "4h"
    )
    assert code == 2 and err.startswith(
        "Error: invalid value for --cloud: 'lambda' (expected a cloud with a spot market"
    )


def test_what_can_hardly_be_has_no_digits(run: Run) -> None:
    words = ("--instance-type", "g2-standard-4", "--count", "2", "--for", "1000d")
    _, out, _ = run("survive", "--cloud", "gcp", *words)
    assert "below 0.01 %" in out and "e-" not in out


def test_refreshing_from_no_public_catalog(run: Run, server: PublicServer) -> None:
    code, _, err = run(
        "catalog", "refresh", "--source", "none", "--cloud", "gcp", "--cloud", "lambda"
    )
    assert code == 2 and "the only ones with prices of Google Cloud" in err
    code, _, err = run("catalog", "refresh", "--source", "none", "--cloud", "aws")
    assert code == 5 and "nothing came from AWS" in err
    assert not server.asked


def test_what_costs_most_besides_vms_is_named_where_nothing_is_feasible(run: Run) -> None:
    code, _, err = run("recommend", "--pw", "3", "--disk", "50TB")
    assert code == 3 and re.search(
        r"\(1 x g4dn\.xlarge \(spot\); \$5\.\d+/h of it for costs besides VMs\)", err
    )
    assert "ask for less besides VMs (--disk, --bucket, --nat), or raise the budget" in err


@pytest.mark.parametrize("source", ["auto", "skypilot", "gpuhunt", "none"])
@pytest.mark.parametrize(
    "forbids", [["--offline"], ["--prices", "snapshot"]], ids=["offline", "snapshot"]
)
def test_no_command_opens_a_socket_where_none_may_be(
    run: Run, server: PublicServer, monkeypatch: pytest.MonkeyPatch, forbids: list[str], source: str
) -> None:
    """Not even to a source that is named, with keys at hand; and not to look a name up."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    assert (
        run("catalog", "refresh", "--source", "skypilot" if source in ("auto", "none") else source)[
            0
        ]
        == 0
    )
    server.asked.clear()
    opened: list[object] = []
    earlier = set(threading.enumerate())  # a late answer to another test is still on its way

    def refuse(*words: object, **_: object) -> None:
        if threading.current_thread() not in earlier - {threading.main_thread()}:
            opened.append(words)
        raise OSError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    for words in (
        ["recommend", "--cloud", "all", "--pw", "10"],
        ["recommend", "--pw", "10", "--region", "all"],
        ["recommend", "--cloud", "gcp", "--pw", "10"],
        ["explain", "g5.xlarge", "--pw", "3"],
        ["sweep", "--pw", "1:2:1"],
    ):
        code, _, err = run(*words, "--source", source, *forbids)
        assert code in (0, 4, 5), err
    assert not opened and not server.asked


def test_regions_go_to_the_clouds_that_have_such_names(run: Run) -> None:
    found = plan(
        run,
        *[
            "--cloud",
            "gcp",
            "--cloud",
            "aws",
            "--region",
            "us-east4",
            "--region",
            "us-west-2",
            "--pw",
            "30",
        ],
    )
    assert {(r["cloud"], r["region"]) for r in found["regions"]} == {
        ("gcp", "us-east4"),
        ("aws", "us-west-2"),
    }
    code, _, err = run("recommend", "--cloud", "gcp", "--region", "US East", "--pw", "10")
    assert code == 2 and "a region of Google Cloud" in err


def test_two_clouds_may_call_a_region_alike(run: Run) -> None:
    found = plan(
        run, *["--cloud", "aws", "--cloud", "lambda", "--region", "us-east-1", "--pw", "30"]
    )
    assert [(r["cloud"], r["region"]) for r in found["regions"]] == [
        ("aws", "us-east-1"),
        ("lambda", "us-east-1"),
    ]


def test_a_csv_file_says_the_cloud(run: Run) -> None:
    _, out, _ = run("recommend", "--cloud", "gcp", "--cloud", "nebius", "--pw", "30", "-o", "csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert {r["cloud"] for r in rows} == {"gcp", "nebius"}


def test_misuse_is_named(run: Run) -> None:
    for words, said in [
        (["recommend", "--cloud", "gpc", "--pw", "3"], "did you mean --cloud gcp?"),
        (
            ["recommend", "--cloud", "gcp", "--catalog", "paper", "--pw", "3"],
            "--cloud does not go with --catalog paper",
        ),
        (["sweep", "--cloud", "gcp", "--cloud", "aws", "--pw", "1:3:1"], "one cloud"),
        (["recommend", "--source", "cloud", "--pw", "3"], "'cloud'"),
    ]:
        code, _, err = run(*words)
        assert code == 2 and said in err


def test_a_public_catalog_is_fetched_without_an_account(run: Run) -> None:
    code, out, _ = run(
        "catalog", "refresh", "--cloud", "gcp", "--cloud", "nebius", "--source", "skypilot"
    )
    rows = [line.split() for line in out.splitlines()[1:]]
    assert code == 0
    assert [(r[0], r[2], r[3]) for r in rows] == [
        ("gcp", "fetched", "3"),
        ("nebius", "fetched", "2"),
    ]
    code, out, _ = run("catalog", "status", "--cloud", "gcp", "-o", "json")
    kept = {row["source"]: row for row in json.loads(out)["public_catalogs"]}
    assert kept["skypilot"]["state"] == "fresh" and kept["skypilot"]["regions"][0] == "us-central1"
    assert (
        kept["gpuhunt"]["state"] == "absent"
        and "--source gpuhunt --cloud gcp" in kept["gpuhunt"]["next_step"]
    )


def test_options_without_effect_on_public_catalogs_are_noted(run: Run) -> None:
    words = ("catalog", "refresh", "--only", "spot", "--days", "7", "--cloud", "gcp")
    code, _, err = run(*words)
    note = "no effect on public catalogs, which are fetched whole: --only and --days"
    assert code == 0 and note in err
    assert "no effect" not in run("catalog", "refresh", "--cloud", "gcp")[2]
    # AWS, which has no account here, takes these options
    code, _, err = run(*words, "--cloud", "aws")
    assert code == 5 and "no effect on public" not in err


def test_without_an_account_every_cloud_is_fetched_from_public_catalogs(
    run: Run, server: PublicServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run("catalog", "refresh", "--cloud", "all")
    assert code == 0, err
    assert {line.split()[0] for line in out.splitlines()[1:]} == {
        "aws",
        "gcp",
        "azure",
        "lambda",
        "nebius",
        "runpod",
    }
    assert "no AWS credentials were found: a public catalog has its prices" in err
    code, _, err = run(
        "catalog", "refresh", "--cloud", "aws", "--region", "us-east-1", "--only", "spot"
    )
    assert code == 5 and "--source skypilot needs no account" in err, (
        "who asks for a signal of AWS means AWS"
    )


def test_a_cache_that_takes_nothing_is_named_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPVM_CACHE_DIR", "/proc/none")
    code, out, err = run("catalog", "refresh", "--cloud", "gcp")
    assert code == 4 and "fetched" in out and err.count("DEEPVM_CACHE_DIR") == 1


def test_what_a_cloud_does_not_have_is_not_promised(run: Run) -> None:
    code, _, err = run("recommend", "--cloud", "lambda", "--pw", "10", "--zone", "a")
    assert code == 2 and "no catalog has zones of Lambda" in err and "refresh" not in err
    code, _, err = run("recommend", "--cloud", "gcp", "--pw", "10", "--placement-scores")
    assert code == 0 and "doctor" not in err


def test_aws_can_be_fetched_from_a_public_catalog(run: Run) -> None:
    assert run("catalog", "refresh", "--source", "gpuhunt")[0] == 0
    found = plan(run, "--pw", "10", "--source", "gpuhunt", "--offline")
    assert {s["source"] for s in found["source"]["signals"] if s["signal"] == "spot"} == {"gpuhunt"}
    _, out, _ = run("catalog", "status")
    assert "gpuhunt" in out


def test_a_refresh_that_fails_says_so(run: Run, server: PublicServer, tmp_path: Path) -> None:
    assert run("catalog", "refresh", "--cloud", "gcp")[0] == 0
    server.answers["/v8/gcp/vms.csv"] = say(b"<html>\n")
    code, out, err = run("catalog", "refresh", "--cloud", "gcp")
    assert (
        code == 5
        and "no column" in err
        and "what was fetched before stays" in err
        and "failed" in out
    )
    assert plan(run, "--cloud", "gcp", "--pw", "10")["configurations"]
    code, _, err = run("catalog", "refresh", "--source", "somewhere")
    assert code == 2 and "skypilot or gpuhunt" in err


class TestExports:
    def plan_of(self, run: Run, tmp_path: Path, *words: str) -> Path:
        file = tmp_path / "plan.json"
        code, out, err = run("recommend", *words, "-o", "json")
        assert code == 0, err
        file.write_text(out)
        return file

    def infra(self, run: Run, tmp_path: Path, rank: int = 1) -> set[str]:
        import yaml

        folder = tmp_path / f"job{rank}"
        words = ("--to", "skypilot", "--output-dir", folder, "--rank", rank)
        code, _, err = run("export", tmp_path / "plan.json", *words)
        assert code == 0, err
        entries = yaml.safe_load((folder / "training.yaml").read_text())["resources"]["any_of"]
        return {e["infra"] for e in entries}

    @pytest.mark.parametrize(
        ("cloud", "infra"),
        [
            ("gcp", "gcp/us-central1/us-central1-a"),
            ("azure", "azure/eastus"),
            ("lambda", "lambda/us-east-1"),
            ("nebius", "nebius/eu-north1"),
            ("runpod", "runpod"),
        ],
    )
    def test_skypilot_takes_plans_of_every_cloud(
        self, run: Run, tmp_path: Path, cloud: str, infra: str
    ) -> None:
        self.plan_of(run, tmp_path, "--cloud", cloud, "--pw", "30")
        assert self.infra(run, tmp_path) == {infra}

    def test_of_several_clouds_each_rank_is_in_its_own(self, run: Run, tmp_path: Path) -> None:
        file = self.plan_of(
            run, tmp_path, *["--cloud", "aws", "--cloud", "lambda", "--pw", "30", "--top", "9"]
        )
        ranked = json.loads(file.read_text())["configurations"]
        for row in ranked:
            assert {i.partition("/")[0] for i in self.infra(run, tmp_path, row["rank"])} == {
                row["cloud"]
            }
        assert {row["cloud"] for row in ranked} == {"aws", "lambda"}

    def test_skypilot_is_told_the_gpus_of_google_clouds_types(
        self, run: Run, tmp_path: Path
    ) -> None:
        """Its releases up to 0.10 refuse such a type without them."""
        import yaml

        self.plan_of(run, tmp_path, "--cloud", "gcp", "--pw", "30", "--gpu", "A100", *RESNET)
        self.infra(run, tmp_path)
        task = yaml.safe_load((tmp_path / "job1" / "training.yaml").read_text())
        (entry,) = task["resources"]["any_of"]
        name, gpus = entry["instance_type"], entry["accelerators"]
        assert gpus == {
            "A100-80GB" if "ultra" in name else "A100": int(name.rpartition("-")[2].rstrip("g"))
        }

    def test_skypilot_does_not_know_gpuhunts_names_of_runpods_types(
        self, run: Run, tmp_path: Path
    ) -> None:
        file = self.plan_of(
            run, tmp_path, *["--cloud", "runpod", "--source", "gpuhunt", "--pw", "30", *RESNET]
        )
        code, _, err = run("export", file, "--to", "skypilot", "--output-dir", tmp_path / "out")
        assert code == 2 and "'skypilot'" in err and "--source skypilot" in err

    def test_terraform_takes_plans_of_google_cloud(self, run: Run, tmp_path: Path) -> None:
        file = self.plan_of(run, tmp_path, "--cloud", "gcp", "--pw", "30")
        best = json.loads(file.read_text())["configurations"][0]
        code, out, err = run("export", file, "--to", "terraform")
        assert code == 0, err
        found = json.loads(out)
        named = [
            vm
            for kind in found["resource"].values()
            for vm in kind.values()
            if "machine_type" in vm
        ]
        assert best["gpu"]["instance_type"] in {vm["machine_type"] for vm in named}
        assert found["variable"]["zone"]["default"] == "us-central1-a"

    @pytest.mark.parametrize(
        ("tool", "cloud", "said"),
        [
            ("ec2-fleet", "gcp", "a plan of Google Cloud skypilot, terraform or torchrun"),
            ("terraform", "azure", "a plan of Azure skypilot or torchrun"),
        ],
    )
    def test_tools_of_some_clouds_refuse_plans_of_others(
        self, run: Run, tmp_path: Path, tool: str, cloud: str, said: str
    ) -> None:
        file = self.plan_of(run, tmp_path, "--cloud", cloud, "--pw", "30")
        code, _, err = run("export", file, "--to", tool, "--output-dir", tmp_path / "out")
        assert code == 2 and said in err


SEVERAL = [
    "recommend",
    "--pw",
    "10",
    "--cloud",
    "aws",
    "--cloud",
    "gcp",
    "--model",
    "llama-8b",
    "--method",
    "lora",
]


def test_a_savings_plan_of_several_clouds_names_its_types(run: Run) -> None:
    """28 % on AWS is no discount of Google's."""
    code, _, err = run(*SEVERAL, "--savings-plan", "28%")
    assert code == 2 and "of several clouds" in err
    assert run(*SEVERAL, "--savings-plan", "g2-*=28%")[0] == 0  # AWS has no such type


def test_each_cloud_of_a_table_has_what_comes_besides_vms(run: Run) -> None:
    code, out, err = run(*SEVERAL, "--egress", "100GB", "--disk", "100GB", "--disk-type", "gp3")
    assert code == 0, err  # one of them has disks of that kind
    (head,) = [line for line in out.splitlines() if "best cluster" in line]
    assert "besides VMs" in head
    aws, gcp = (
        next(t for t in out.splitlines() if t.startswith(name)) for name in ("AWS", "Google")
    )
    assert "+ $9." in aws and "?" not in aws  # 100 x $0.09, and boot
    assert " $12." in gcp and "+ ?" in gcp  # 100 x $0.12; Google has no gp3
    code, _, err = run(*SEVERAL, "--disk", "100GB", "--disk-type", "gp9")
    assert code == 2 and "--disk-type" in err
