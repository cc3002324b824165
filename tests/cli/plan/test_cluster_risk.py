"""Where a report names the share of one VM that is preempted in a month, it names that of the
cluster.
"""

from __future__ import annotations

import json

import pytest
from support.command import Run

ASK = ["recommend", "--pw", "3", "--prices", "snapshot", "--model", "none"]
CLUSTER = (
    "Risk of the cluster: if the 9 are preempted independently, at least 86 % of months see a"
    " preemption: "
)


def test_the_report_names_both(run: Run) -> None:
    lines = run(*ASK)[1].splitlines()
    at = next(
        i
        for i, line in enumerate(lines)
        if line.startswith("Risk: above 20 % of g4dn.2xlarge spot VMs")
    )
    assert lines[at + 1].startswith(CLUSTER)


def test_the_wide_table_has_a_column_for_each(run: Run) -> None:
    lines = run(*ASK, "-o", "wide")[1].splitlines()
    head = next(line for line in lines if line.startswith("#"))
    row = lines[lines.index(head) + 1]
    vm, cluster = head.index("VM interrupted a month"), head.index("cluster interrupted a month")
    assert row[vm:].startswith("above 20 %") and row[cluster:].startswith("at least 86 %")


@pytest.mark.parametrize("words", [ASK, [*ASK, "-r", "us-east-1", "-r", "us-west-2"]])
def test_documents_have_both(words: list[str], run: Run) -> None:
    found = json.loads(run(*words, "-o", "json")[1])
    for row in found["configurations"]:
        own = row["interruptions"]
        assert own["vm_count"] == row["gpu"]["spot_count"] and own["independent"] is True
        low = own["vm_monthly_share"]["min"]
        assert own["cluster_monthly_share"]["min"] == pytest.approx(
            1 - (1 - low) ** own["vm_count"]
        )


def test_explain_names_both(run: Run) -> None:
    out = run("explain", "g4dn.xlarge", "--pw", "3", "--prices", "snapshot", "--model", "none")[1]
    assert "\nRisk: " in out and "\nRisk of the cluster: if the 9 are preempted" in out


def test_one_vm_is_its_own_cluster(run: Run) -> None:
    out = run(
        "recommend",
        "--pw",
        "0.6",
        "--instance-type",
        "g5.xlarge",
        "--prices",
        "snapshot",
        "--model",
        "none",
    )[1]
    assert "\nRisk: " in out and "Risk of the cluster" not in out


def test_a_job_names_the_cluster_too(run: Run) -> None:
    out = run(*ASK, "--work", "100")[1]
    doubt = next(
        line
        for line in out.splitlines()
        if line.startswith("Warning: 15 to 20 % a month is of all zones")
    )
    assert (
        "counted as 17.5 % gone after a month, which takes one or more of 9 in 82 % of the months; "
        in doubt
    )
    assert "\nRisk of the cluster: if the " in out


def test_a_given_mean_time_is_not_taken_for_aws_s(run: Run) -> None:
    """Two losses a month beside 31 in two days read like a contradiction."""
    given = "Times and bills above use the mean time to preemption that was given, not this risk."
    assert given in run(*ASK, "--work", "100", "--mttp", "12h")[1]
    assert given not in run(*ASK, "--work", "100")[1]
