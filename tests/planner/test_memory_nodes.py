"""Which of AWS's types a plan takes as memory nodes, by what AWS says of them."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

import pytest
from support.builders import catalog, cpu_type, gpu_type
from support.planning import explain, recommend

from deepvm.catalog.market.build_catalog import MarketRequest, RegionMarket
from deepvm.catalog.signals.signal import Signal
from deepvm.catalog.store import load_catalog
from deepvm.checkpoint.files import file_names
from deepvm.checkpoint.files.stripe import plan_part
from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.core.cluster.cluster import Rejection
from deepvm.core.cluster.instances import Catalog, Market, Quota
from deepvm.core.cluster.memory_nodes import (
    MOST_PARTS,
    PAPER_NODES,
    PART_BYTES,
    REAL_NODES,
    SaturationTable,
)
from deepvm.core.cluster.speedup import HybridSpeedup, RingSpeedup
from deepvm.core.units import GIB
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import compare
from deepvm.reports.plans.plan_view import PlanView
from deepvm.reports.plans.report import print_report
from deepvm.reports.plans.sources import doubts

NOW = datetime(2026, 11, 23, tzinfo=timezone.utc)
# vCPUs, GiB, sustained and peak Gbit/s, current, burstable, $/h in us-east-1 (shared data of July
# 2026).
NODES = {
    "t1.micro": (1, 0.612, 0.07, 0.28, False, False, "0.02"),
    "t3.large": (2, 8, 0.512, 5, True, True, "0.0832"),
    "a1.medium": (1, 2, 0.5, 10, False, False, "0.0255"),
    "m6g.medium": (1, 4, 0.5, 10, True, False, "0.0385"),
    "a1.large": (2, 4, 0.75, 10, False, False, "0.051"),
    "c7g.large": (2, 4, 0.937, 12.5, True, False, "0.0725"),
    "m7g.large": (2, 8, 0.937, 12.5, True, False, "0.0816"),
    "c5n.large": (2, 5.25, 3, 25, True, False, "0.108"),
    "m7g.xlarge": (4, 16, 1.876, 12.5, True, False, "0.1632"),
    "r7g.xlarge": (4, 32, 1.876, 12.5, False, False, "0.2142"),
}
TRAINER = {
    "vcpus": 8,
    "memory_gib": 32,
    "baseline_gbps": 10,
    "peak_gbps": 25,
    "gpu": {"name": "T4", "manufacturer": "NVIDIA", "count": 1, "memory_gib": 16},
}


def aws(*names: str, **changes: Any) -> Catalog:
    """AWS's market with these types for memory nodes, all without any."""
    specs: dict[str, Any] = {"g4dn.2xlarge": TRAINER}
    for name in names or NODES:
        vcpus, gib, baseline, peak, current, burstable, _ = NODES[name]
        specs[name] = {
            "vcpus": vcpus,
            "memory_gib": gib,
            "baseline_gbps": baseline,
            "peak_gbps": peak,
            "current": current,
            "burstable": burstable,
        } | changes
    data = {
        "specs": specs,
        "on-demand": {"g4dn.2xlarge": "0.752"} | {name: NODES[name][-1] for name in names or NODES},
        "spot": {"g4dn.2xlarge": {"": ["0.3179", ""]}},
    }
    signals = {
        k: Signal(k, "us-east-1", NOW, f"said {k}", v, origin="live") for k, v in data.items()
    }
    return RegionMarket("us-east-1", signals, MarketRequest(), NOW).catalog()


def nine(shop: Catalog, **options: Any) -> Recommendations:
    """Nine trainers, which must have memory nodes."""
    options = {"architecture": "tiering", "max_nodes": 9, "objective": "throughput"} | options
    return recommend(shop, 100, **options)


def best(shop: Catalog, **options: Any) -> tuple[int, str]:
    answer = nine(shop, **options)
    assert answer and answer[0].cluster.gpu_count == 9 and answer[0].cluster.memory is not None
    return answer[0].cluster.memory.count, answer[0].cluster.memory.instance.name


def why(answer: Recommendations, name: str) -> Rejection:
    return next(r for r in answer.rejections if r.instance_type == name)


class TestWhatVerificationFound:
    def test_a_vm_whose_memory_is_all_checkpoints(self) -> None:
        """Two of 0.98 GB on a1.medium, 2 GiB, for nine senders to 0.5 Gbit/s."""
        assert best(aws(), checkpoint_size="980MB") == (1, "c5n.large")
        assert "a1.medium" not in {
            m for _, m in [best(aws("a1.medium", "c5n.large"), checkpoint_size="980MB")]
        }

    def test_t1_has_credits_although_aws_s_flag_says_no(self) -> None:
        assert why(nine(aws(), checkpoint_size="10MB"), "t1.micro").reason == "burstable"

    def test_7_82_of_8_gib(self) -> None:
        # 2 x 4.2 GB are 7.82 GiB
        answer = nine(aws(), checkpoint_size="4.2GB", generation="current")
        assert answer[0].cluster.memory is not None
        assert answer[0].cluster.memory.instance.name == "m7g.xlarge"

    def test_a_peak_of_minutes(self) -> None:
        """m7g.large sustains 0.937 Gbit/s, where Table V has 3 senders.

        Its peak of 12.5 would have 24.
        """
        assert best(aws("m7g.large")) == (4, "m7g.large")
        assert best(aws("c5n.large")) == (1, "c5n.large")
        assert best(aws("m7g.large", "c5n.large")) == (1, "c5n.large")


class TestSharing:
    """m nodes together hold what none holds alone, as the runtime splits each version over the
    nodes of a job.
    """

    def test_the_most_is_the_runtime_s(self) -> None:
        assert MOST_PARTS == file_names.MOST_PARTS

    def test_a_part_needs_no_more_than_was_planned(self) -> None:
        """900 tensors, each split over all processes: llama-8b with Adam has 873."""
        tensors, size = 900, 90_000_000 + 17
        for processes in [1, 7, 64]:
            cuts = [size * row // (tensors * processes) for row in range(tensors * processes + 1)]
            shards = tuple(
                tuple(
                    Segment(
                        cuts[t * processes + rank],
                        cuts[t * processes + rank + 1] - cuts[t * processes + rank],
                    )
                    for t in range(tensors)
                )
                for rank in range(processes)
            )
            whole = Layout(size, shards)
            for of in [2, 3, 64]:
                for number in (1, of):
                    plan = plan_part(whole, number, of)
                    pages = -(-plan.layout.size // 4096) * 4096
                    assert pages <= -(-size // of) + PART_BYTES
                    assert plan.part.length <= size // of + 1

    @pytest.mark.parametrize("solver", ["ilp", "frontier"])
    def test_to_the_byte(self, solver: str) -> None:
        """Rooms of 2.75 GB less 32 MB for two parts: three hold 8.16 GB, and not a byte more."""
        share = REAL_NODES.room_bytes(4 * GIB) - 2 * PART_BYTES
        shop = catalog(
            gpu_type(),
            cpu_type(memory_gib=4, network_gbps=25),
            memory_nodes=REAL_NODES,
            n_sat=SaturationTable((1.0,), (99,)),
        )
        for size, count in (
            (REAL_NODES.room_bytes(4 * GIB) // 2, 1),
            (3 * share // 2, 3),
            (3 * share // 2 + 1, 4),
        ):
            assert best(shop, checkpoint_size=size, solver=solver)[0] == count
        most = REAL_NODES.largest_checkpoint(4 * GIB, 2)
        assert best(shop, checkpoint_size=most, solver=solver)[0] == 64
        answer = nine(shop, checkpoint_size=most + 1, solver=solver)
        assert not answer and why(answer, "cpu.xlarge").detail.startswith(
            "memory 4 GiB, of which 2.56 GiB can hold checkpoints;"
            " 64 nodes, the most, hold 162 GiB, needed 2 x 86.9"
        )

    def test_each_node_alone_by_the_paper_s_rule(self) -> None:
        shop = catalog(gpu_type(), cpu_type(memory_gib=4))
        assert best(shop, checkpoint_size="2GiB") == (1, "cpu.xlarge")
        assert why(nine(shop, checkpoint_size=2**31 + 1), "cpu.xlarge").reason == "memory"
        assert PAPER_NODES.most_nodes is None and not PAPER_NODES.shared

    def test_senders_and_memory_ask_for_the_larger_number(self) -> None:
        """Nine senders to 0.937 Gbit/s need four; 31 hold 2 x 96 GB."""
        assert best(aws("m7g.large"), checkpoint_size="4.2GB") == (4, "m7g.large")
        assert best(aws("m7g.large"), checkpoint_size="96GB") == (31, "m7g.large")
        assert best(aws("m7g.large", "m7g.xlarge"), checkpoint_size="96GB") == (15, "m7g.xlarge")

    @pytest.mark.parametrize("solver", ["ilp", "frontier"])
    def test_a_cheap_small_node_does_not_hide_a_dear_large_one(self, solver: str) -> None:
        shop = catalog(
            gpu_type(network_gbps=25),
            cpu_type("small", on_demand_usd_per_hour="0.1", memory_gib=4, network_gbps=25),
            cpu_type("large", on_demand_usd_per_hour="0.3", memory_gib=64, network_gbps=25),
            memory_nodes=REAL_NODES,
        )
        assert best(shop, checkpoint_size="1GB", solver=solver) == (1, "small")
        # Three small ones cost the same
        assert best(shop, checkpoint_size="4GB", solver=solver) == (1, "large")
        for top in (1, 2, 9):  # eight small ones
            assert best(shop, checkpoint_size="10GB", solver=solver, top=top) == (1, "large")

    def test_memory_is_what_limits_a_cluster(self) -> None:
        answer = recommend(aws("m7g.large"), 4, architecture="tiering", checkpoint_size="96GB")
        assert [(b.constraint, b.reason) for b in answer[0].binding] == [
            (
                "budget",
                (
                    "5 x g4dn.2xlarge with 31 x m7g.large would cost $4.1191/h, $0.1191 over the"
                    " budget"
                ),
            ),
            (
                "memory",
                "31 x m7g.large hold 2 x 96 GB together (eq. 6) and receive them in time; 5 senders"
                " need 2",
            ),
        ]
        light = recommend(aws("m7g.large"), 4, architecture="tiering", checkpoint_size="1GB")
        assert "memory" not in {b.constraint for b in light[0].binding}

    def test_more_senders_than_64_nodes_take(self) -> None:
        slow = cpu_type(network_gbps=1.0, on_demand_usd_per_hour="0.01")
        shop = catalog(
            gpu_type(speedups=(RingSpeedup(0, 0),)),
            slow,
            memory_nodes=REAL_NODES,
            n_sat=SaturationTable((1.0,), (2,)),
            default_speedup="ring",
        )
        answer = recommend(shop, 1000, architecture="tiering", top=1)
        assert (
            answer[0].cluster.gpu_count,
            answer[0].cluster.memory and answer[0].cluster.memory.count,
        ) == (127, 64)
        assert [(b.constraint, b.reason) for b in answer[0].binding] == [
            (
                "saturation",
                "128 senders need 65 memory nodes (n/m < 2); a checkpoint is split over at most 64",
            )
        ]
        assert answer.doubt == ""

    def test_the_fewest_that_train_need_too_many_nodes(self) -> None:
        curve = HybridSpeedup(0.5, 140, 50)  # above 0 from 137 VMs on
        shop = catalog(
            gpu_type(speedups=(curve,)),
            cpu_type(network_gbps=1.0),
            memory_nodes=REAL_NODES,
            n_sat=SaturationTable((1.0,), (2,)),
        )
        answer = recommend(shop, 1000, architecture="tiering")
        assert answer.infeasible is not None and answer.infeasible.constraint == "saturation"
        assert (
            answer.infeasible.reason
            == "137 x gpu.xlarge, the fewest that train, would need 69 memory nodes; a"
            " checkpoint is"
            " split over at most 64"
        )

    def test_a_quota_for_fewer_nodes_than_memory_needs(self) -> None:
        limit = (Quota("Standard", Market.ON_DEMAND, 60),)  # 30 of m7g.large
        answer = nine(aws("m7g.large"), checkpoint_size="96GB", quotas=limit)
        found = why(answer, "m7g.large")
        assert found.reason == "quota" and found.detail.endswith(
            "so many hold 2 x 96 GB together (eq. 6)"
        )
        assert "31 x m7g.large would need 62 on-demand vCPUs of Standard" in found.detail
        assert answer.infeasible is not None and answer.infeasible.constraint == "quota"
        assert "higher quota" in answer.infeasible.advice
        assert best(aws("m7g.large"), checkpoint_size="90GB", quotas=limit) == (29, "m7g.large")


def test_each_node_has_room_for_f_x_s() -> None:
    for solver in ["ilp", "frontier"]:
        for mb in [1, 300, 1370, 1380, 2000, 3190, 3200, 6840, 6860]:
            answer = nine(
                aws(), checkpoint_size=f"{mb}MB", generation="any", top=100, solver=solver
            )
            for found in answer:
                node = found.cluster.memory
                assert node is not None and node.instance.memory_gib is not None
                room = node.instance.memory_gib * GIB * 0.85 - 900_000_000
                alone = 2 * mb * 10**6 <= room
                together = 1 if alone else math.ceil(2 * mb * 10**6 / (room - 2 * 16_000_000))
                assert node.instance.vcpus >= 2
                gbps = node.instance.network_baseline_gbps
                assert gbps is not None
                senders = 12 if gbps >= 1.7 else 3
                assert node.count == max(
                    math.floor(found.cluster.gpu_count / senders) + 1, together
                )
            assert len(answer)


def test_what_is_left_out_for_what_it_is() -> None:
    """A reason that a program can test, a sentence, and two ways to have it all the same."""
    for name, reason, cure in [
        ("t3.large", "burstable", {"burstable": True}),
        ("a1.large", "previous-generation", {"generation": "any"}),
        ("m6g.medium", "vcpus", {}),
    ]:
        shop = aws(name, "m7g.xlarge")
        answer = nine(shop)
        assert [r.reason for r in answer.rejections if r.instance_type == name] == [reason]
        said = explain(shop, 100, name)
        assert said.rejection is not None and said.rejection.reason == reason
        assert (
            said.verdict.startswith(f"{name} is not considered: it ")
            and "--memory-node" in said.verdict
        )
        for option in cure:
            assert f"--{option}" in said.verdict
            assert not any(r.instance_type == name for r in nine(shop, **cure).rejections)
        assert best(shop, memory_node=name)[1] == name
        assert why(nine(shop, memory_node=[f"{name[:-1]}?", "m7g.*"]), name).reason == reason, (
            "a glob names none"
        )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "t3.large",
            "(burstable): t3.large.\nTo consider them: '--burstable', or '--memory-node NAME'.\n",
        ),
        (
            "a1.large",
            (
                "(previous-generation): a1.large.\nTo consider them: '--generation any', or"
                " '--memory-node NAME'.\n"
            ),
        ),
        ("m6g.medium", "(vcpus): m6g.medium.\nTo consider them: '--memory-node NAME'.\n"),
    ],
)
def test_the_report_says_how_to_have_them(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(PlanView(compare([nine(aws(name, "m7g.xlarge"))]), NOW), all_types=True)
    assert f"Not considered {said}" in capsys.readouterr().out


def test_a_named_type_must_have_room_all_the_same() -> None:
    answer = nine(aws(), memory_node="a1.medium", checkpoint_size="30GB")
    assert not answer and answer.infeasible is not None and answer.infeasible.constraint == "memory"
    assert (
        answer.infeasible.reason
        == "no 64 memory nodes together hold 2 x 30 GB (eq. 6): the largest, a1.medium, has 2 GiB,"
        " enough for checkpoints up to 28.58 GB"
    )


def test_current_generations_only_is_said_as_before() -> None:
    assert why(nine(aws(), generation="current"), "a1.large").reason == "excluded"


def test_nothing_feasible_says_what_would_allow_more() -> None:
    for names, size, advised in [
        (("a1.large",), "300MB", ["--generation any"]),
        (
            ("a1.large", "t3.large", "m6g.medium"),
            "300MB",
            ["--burstable", "--generation any", "--memory-node"],
        ),
        (("m7g.large", "r7g.xlarge"), "300GB", ["--generation any"]),
        (("a1.large", "t3.large"), "100GB", ["--burstable"]),
        (("a1.large", "t3.large"), "300GB", []),
    ]:
        answer = nine(aws(*names), checkpoint_size=size)
        assert answer.infeasible is not None and answer.infeasible.constraint == "memory"
        options = ["--burstable", "--generation any", "--memory-node"]
        assert [o for o in options if o in answer.infeasible.advice] == advised
        for option, change in (
            ("--generation any", {"generation": "any"}),
            ("--burstable", {"burstable": True}),
        ):
            assert option not in advised or nine(aws(*names), checkpoint_size=size, **change)


def test_a_bandwidth_that_may_be_a_peak_is_doubted() -> None:
    shop = aws("c7g.large", baseline_gbps=None)
    assert best(shop) == (1, "c7g.large")
    said = "the sustained bandwidth of c7g.large is unknown: 12.5 Gbit/s, used here, may be a peak"
    assert said in doubts(nine(shop))
    assert not any("sustains" in d for d in doubts(nine(aws("c7g.large"))))
    plain = catalog(gpu_type(), cpu_type())
    assert plain.memory_nodes is PAPER_NODES and not any(
        "sustains" in d for d in doubts(nine(plain))
    )


def test_peak_and_baseline_differ_for_trainers_alone() -> None:
    """--network is about those: a memory node's network counts with what it sustains, whichever."""
    shop = aws("m7g.large", "c5n.large")
    assert best(shop) == best(shop.sustained()) == (1, "c5n.large")
    assert best(aws("m7g.large")) == best(aws("m7g.large").sustained()) == (4, "m7g.large")


def test_eq_6_as_it_is_printed_where_the_catalog_says_so() -> None:
    for name in ("paper", "simulated"):
        assert load_catalog(name).memory_nodes is PAPER_NODES
    assert aws().memory_nodes is REAL_NODES
    assert load_catalog("aws-us-east-1", prices="snapshot", offline=True).memory_nodes is REAL_NODES
    tight = [
        gpu_type(),
        cpu_type(memory_gib=1, vcpus=1, current_generation=False, network_baseline_gbps=0.1),
    ]
    for solver in ("ilp", "frontier"):
        assert best(catalog(*tight), checkpoint_size=2**29, solver=solver) == (1, "cpu.xlarge")
        assert not nine(catalog(*tight), checkpoint_size=2**29 + 1, solver=solver)
        assert not nine(
            catalog(*tight, memory_nodes=REAL_NODES), checkpoint_size=2**20, solver=solver
        )
