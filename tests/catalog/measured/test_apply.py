"""Measured figures in a catalog: above all that figures of two workloads never stand in one
ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import catalog, cpu_type, gpu_type, paper
from support.effort import examples
from support.profiling.measurements import DAY, WORKLOAD, eflops, saturation, scaling, tables
from support.published import FIGURE_5, SIZES

import deepvm
from deepvm.catalog.measured.apply import reasons
from deepvm.catalog.measured.entries import Entry
from deepvm.catalog.measured.tables import Tables
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Catalog, Gpu
from deepvm.core.cluster.memory_nodes import PAPER_NODES, PAPER_TABLE, REAL_NODES, SaturationTable
from deepvm.core.cluster.speedup import MeasuredSpeedup, RingSpeedup
from deepvm.errors import RequestError

NAMES = ("g3s.xlarge", "g4dn.xlarge", "g5.xlarge")
SPEEDS = st.floats(1e8, 1e15)


def paper_gpus() -> Catalog:
    """The paper's types, each with its own GPU."""
    models = {"g3s.xlarge": "M60", "g4dn.xlarge": "T4", "g5.xlarge": "A10G"}
    own = paper()
    return replace(
        own, instances=tuple(replace(i, gpu=Gpu(models[i.name])) if i.gpu else i for i in own)
    )


PAPER = paper_gpus()
OTHER = {**WORKLOAD, "model": "resnet18"}


def apply(
    tables: Tables, catalog: Catalog, workload: str = "", *, among: Sequence[Catalog] = ()
) -> Catalog:
    return tables.apply(catalog, workload, among=among)


def test_nothing_measured_changes_nothing() -> None:
    assert apply(tables(), PAPER) is PAPER
    assert apply(tables(eflops("z9.huge"), scaling("z9.huge")), PAPER) is PAPER


def test_one_type_alone_says_nothing_about_which_is_faster() -> None:
    found = apply(tables(eflops("g4dn.xlarge")), PAPER)
    assert [i.eflops for i in found] == [i.eflops for i in PAPER]
    assert found["g4dn.xlarge"].eflops_source.startswith(
        "measured here, 2026-03-01 (resnet50/224px/b64/float32/adam): 1.2e+12"
    )
    assert not any(i.eflops_basis for i in found)
    assert found.provenance.doubts[0].startswith("g4dn.xlarge alone links")
    assert "2 other types" in found.provenance.doubts[0]
    assert [m.subject for m in found.provenance.measured] == ["g4dn.xlarge"]


@settings(max_examples=examples(100))
@given(st.dictionaries(st.sampled_from(NAMES), SPEEDS, min_size=1), st.floats(0.1, 1e6))
def test_the_unit_of_the_measurements_does_not_matter(
    measured: dict[str, float], unit: float
) -> None:
    """Ranking a paper figure beside a FLOP/s would make it matter."""
    one = apply(tables(*(eflops(n, v) for n, v in measured.items())), PAPER)
    two = apply(tables(*(eflops(n, v * unit) for n, v in measured.items())), PAPER)
    for a, b in zip(one, two, strict=True):
        assert a.eflops == b.eflops is None or a.eflops == pytest.approx(b.eflops, rel=3e-6)
        assert a.eflops_basis == b.eflops_basis


@settings(max_examples=examples(100))
@given(st.dictionaries(st.sampled_from(NAMES), SPEEDS, min_size=1))
def test_measured_types_stand_to_each_other_as_measured(measured: dict[str, float]) -> None:
    found = apply(tables(*(eflops(n, v) for n, v in measured.items())), PAPER)
    for a, b in combinations(measured, 2):
        assert found[a].eflops / found[b].eflops == pytest.approx(
            measured[a] / measured[b], rel=1e-5
        )  # type: ignore[operator]
    # Put on the catalog's scale by the geometric mean: the others are neither favoured nor harmed
    # as a whole.
    before = math.prod(PAPER[n].eflops or 0 for n in measured)
    assert math.prod(found[n].eflops or 0 for n in measured) == pytest.approx(before, rel=1e-4)
    assert all(found[n].eflops == PAPER[n].eflops for n in NAMES if n not in measured)


def test_links_that_contradict_each_other_make_the_rest_estimates() -> None:
    for ratio, estimate in [(696 / 377, False), (696 / 377 * 1.2, False), (696 / 377 * 1.3, True)]:
        found = apply(tables(eflops("g4dn.xlarge", 1e12), eflops("g5.xlarge", ratio * 1e12)), PAPER)
        assert bool(found["g3s.xlarge"].eflops_basis) is estimate
        assert not found["g4dn.xlarge"].eflops_basis and not found["g5.xlarge"].eflops_basis
        best = deepvm.recommend(found, 3, instance_type="g3s.xlarge")
        assert bool(best) is not estimate
        assert deepvm.recommend(found, 3, instance_type="g3s.xlarge", estimates=True)


def unlinked(**other: object) -> Catalog:
    """A type that nobody published beside those of the paper."""
    new = gpu_type("new.xlarge", eflops=None, gpu=Gpu("L4"), **other)
    return replace(PAPER, instances=(*PAPER.instances, new))


def test_without_a_link_only_what_was_measured_may_train() -> None:
    found = apply(tables(eflops("new.xlarge", 3e12)), unlinked())
    assert found["new.xlarge"].eflops == 3e12
    assert [i.name for i in found if i.eflops is not None] == ["new.xlarge"]
    assert found.eflops_unit == "FLOP/s of resnet50/224px/b64/float32/adam"
    answer = deepvm.recommend(found, 3)
    assert {r.cluster.gpu.name for r in answer} == {"new.xlarge"}
    (left_out,) = (r for r in answer.rejections if r.instance_type == "g5.xlarge")
    assert left_out.reason == "unprofiled"
    assert (
        "its eFLOPS (696, published for another workload) compare with nothing that was measured"
        " here" in left_out.detail
    )
    (doubt,) = found.provenance.doubts
    assert "3 other types" in doubt and "measure g3s.xlarge or g4dn.xlarge or g5.xlarge" in doubt


def test_an_estimate_links_only_where_estimates_are_allowed() -> None:
    guessed = replace(unlinked()["new.xlarge"], eflops=300.0, eflops_basis="guessed")
    found = apply(
        tables(eflops("new.xlarge", 3e12)), replace(PAPER, instances=(*PAPER.instances, guessed))
    )
    assert found["new.xlarge"].eflops == 3e12 and not found["new.xlarge"].eflops_basis
    assert found["g5.xlarge"].eflops == pytest.approx(696e10)
    assert "estimates of new.xlarge" in found["g5.xlarge"].eflops_basis
    assert {r.cluster.gpu.name for r in deepvm.recommend(found, 3)} == {"new.xlarge"}
    assert deepvm.recommend(found, 3, estimates=True, instance_type="g4dn.xlarge")


def test_types_with_the_same_gpu_follow() -> None:
    """Else a large type would keep a published figure next to a small one that was measured."""
    gpu = Gpu("T4")
    own = catalog(
        gpu_type("a.small", gpu=gpu, eflops=100.0),
        gpu_type("a.large", gpu=gpu, eflops=100.0),
        gpu_type("a.four", gpu=Gpu("T4", 4), eflops=400.0, eflops_basis="4 x one T4's"),
        gpu_type("a.unknown", gpu=gpu, eflops=None),
        gpu_type("b.small", gpu=Gpu("A10G"), eflops=200.0),
        cpu_type(),
    )
    found = apply(tables(eflops("a.small", 1e12), eflops("b.small", 1.8e12)), own)
    small = found["a.small"].eflops
    assert small is not None and small != 100
    assert found["a.large"].eflops == small == found["a.unknown"].eflops
    assert not found["a.large"].eflops_basis and "same GPU" in found["a.large"].eflops_source
    assert (
        found["a.four"].eflops == pytest.approx(4 * small, rel=1e-5)
        and found["a.four"].eflops_basis
    )


def test_the_embedded_market_follows_too() -> None:
    aws = load_catalog("aws-us-east-1", prices="snapshot")
    points = list(zip(SIZES, FIGURE_5["g4dn.xlarge"], strict=True))
    found = apply(
        tables(eflops("g4dn.xlarge"), eflops("g5.xlarge", 2.4e12), scaling("g4dn.xlarge", points)),
        aws,
    )
    small, large = found["g4dn.xlarge"], found["g4dn.2xlarge"]
    assert small.eflops == large.eflops != 377
    assert (
        small.curve("measured") == large.curve("measured") and large.default_speedup == "measured"
    )
    assert small.speedup_basis == "" and large.speedup_basis == "those of g4dn.xlarge, the same GPU"


def test_figures_of_two_workloads_are_not_compared() -> None:
    found = apply(tables(eflops("g4dn.xlarge"), eflops("g5.xlarge", 9e12, workload=OTHER)), PAPER)
    later = apply(
        tables(
            eflops("g4dn.xlarge"), eflops("g5.xlarge", 9e12, DAY + timedelta(1), workload=OTHER)
        ),
        PAPER,
    )
    # Of equals the last counts: by name here, by day there.
    assert [len(c.provenance.measured) for c in (found, later)] == [1, 1]
    assert later.provenance.measured[0].subject == "g5.xlarge"
    assert any(
        "eFLOPS of g4dn.xlarge were measured, but not with resnet18" in n
        for n in later.provenance.notes
    )
    asked = apply(
        tables(eflops("g4dn.xlarge"), eflops("g5.xlarge", workload=OTHER)), PAPER, "resnet50"
    )
    assert [m.subject for m in asked.provenance.measured] == ["g4dn.xlarge"]


def test_the_workload_of_most_types_counts() -> None:
    late = DAY + timedelta(9)
    found = apply(
        tables(
            eflops("g3s.xlarge"),
            eflops("g4dn.xlarge"),
            eflops("g4dn.xlarge", 5e12, late, workload=OTHER),
        ),
        PAPER,
    )
    assert {m.workload for m in found.provenance.measured} == {"resnet50/224px/b64/float32/adam"}


def test_a_workload_that_was_not_measured() -> None:
    with pytest.raises(RequestError, match="expected one that was measured: resnet50/224px"):
        apply(tables(eflops("g4dn.xlarge")), PAPER, "bert")
    with pytest.raises(RequestError, match="nothing was measured yet"):
        apply(tables(), PAPER, "bert")


@pytest.mark.parametrize("says", [{"machine": {"gpus": []}}, {"device": "cpu"}])
def test_processors_do_not_stand_for_a_gpu(says: dict[str, object]) -> None:
    found = apply(tables(eflops("g4dn.xlarge", 1e9, **says)), PAPER)
    assert found.instances == PAPER.instances and not found.provenance.measured
    assert "measured on the processors of g4dn.xlarge, not on its GPUs" in found.provenance.notes[0]


def test_processors_take_nothing_from_a_gpu() -> None:
    """Neither its place in the tables nor its say in which workload counts, though they were
    measured later.
    """
    gpu, late = eflops("g4dn.xlarge", 1e12, device="cuda"), DAY + timedelta(9)
    same = apply(tables(gpu, eflops("g4dn.xlarge", 1e9, late, device="cpu")), PAPER)
    other = apply(
        tables(gpu, eflops("g4dn.xlarge", 1e9, late, device="cpu", workload=OTHER)), PAPER
    )
    for found in (same, other):
        assert [m.value for m in found.provenance.measured] == [gpu.value]
        assert "measured on the processors of g4dn.xlarge" in found.provenance.notes[0]
    name = eflops("g4dn.xlarge", 1e9, late, device="cpu").name
    assert [e.name for e in tables(gpu, eflops("g4dn.xlarge", 1e9, late, device="cpu"))] == [
        gpu.name,
        name,
    ]


def test_a_curve_of_processors_is_not_used_for_gpus() -> None:
    slow = {**WORKLOAD, "device": "cpu"}
    found = apply(tables(scaling("g4dn.xlarge", workload=slow)), PAPER)
    assert found.instances == PAPER.instances and not found.provenance.measured
    assert "measured on the processors of g4dn.xlarge" in found.provenance.notes[0]


def test_some_of_the_gpus_are_not_the_machine() -> None:
    eight = replace(
        PAPER, instances=(*PAPER, replace(PAPER["g4dn.xlarge"], name="big", gpu=Gpu("T4", 8, 16)))
    )
    seen = {"machine": {"gpus": ["Tesla T4"] * 8}}
    found = apply(tables(eflops("big", device="cuda", processes=1, **seen)), eight)
    assert found.instances == eight.instances and "on 1 of its 8 GPUs" in found.provenance.notes[0]
    for whole in (seen | {"processes": 8}, seen, {}):
        assert apply(tables(eflops("big", **whole)), eight).provenance.measured


@pytest.mark.parametrize("measure", [eflops, scaling])
def test_another_gpu_than_the_type_has_is_doubted(measure: Callable[..., Entry]) -> None:
    for machine in ({"gpus": ["Tesla T4"]}, {"gpus": []}, {}, None):
        right = apply(tables(measure("g4dn.xlarge", machine=machine)), PAPER)
        assert not any("GPUs, but" in d for d in right.provenance.doubts)
    for name, machine in (("g4dn.xlarge", "NVIDIA T4G"), ("g5.xlarge", "Tesla T4")):
        doubts = apply(tables(measure(name, machine={"gpus": [machine]})), PAPER).provenance.doubts
        gpu = PAPER[name].gpu
        assert gpu and any(
            d.startswith(f"{name} has {gpu.name} GPUs") and f"measured on {machine}: if" in d
            for d in doubts
        )


@pytest.mark.parametrize("measure", [eflops, scaling])
def test_gpus_of_a_type_without_one_are_asked_about(measure: Callable[..., Entry]) -> None:
    entry = measure("c5.xlarge", machine={"gpus": ["Tesla T4"]})
    found = apply(tables(entry), PAPER)
    assert found.instances == PAPER.instances and not found.provenance.measured
    assert "c5.xlarge has no GPU, but this was measured on Tesla T4" in found.provenance.notes[0]
    assert apply(tables(measure("c5.xlarge")), PAPER) is PAPER


def test_regions_come_to_one_scale() -> None:
    """A region without the type that links must not seem 10^10 times as fast."""
    linked, alone = unlinked(), replace(PAPER, instances=unlinked().instances[-1:])
    measured = tables(eflops("g4dn.xlarge", 1e12), eflops("new.xlarge", 2e12))
    a, b = (apply(measured, c, among=(linked, alone)) for c in (linked, alone))
    assert a["new.xlarge"].eflops == b["new.xlarge"].eflops == pytest.approx(754)
    assert a.eflops_unit == b.eflops_unit
    assert [m.subject for m in b.provenance.measured] == ["new.xlarge"]


# --- curves ---


def test_a_measured_curve_is_the_types_own_default() -> None:
    points = list(zip(SIZES, FIGURE_5["g4dn.xlarge"], strict=True))
    found = apply(tables(scaling("g4dn.xlarge", points)), PAPER)
    curve = found["g4dn.xlarge"].curve("measured")
    assert isinstance(curve, MeasuredSpeedup) and curve.points == tuple(points)
    assert curve.source == "measured here, 2026-03-01 (resnet50/224px/b64/float32/adam)"
    ring = found["g4dn.xlarge"].curve("ring")
    assert isinstance(ring, RingSpeedup) and ring.fitted_to == 32
    assert curve.beyond == RingSpeedup.fit(points[1:])
    answer = deepvm.recommend(found, 3, instance_type="g4dn.xlarge")
    assert {r.speedup_kind for r in answer} == {"measured"}
    by_size = dict(points)
    for r in deepvm.recommend(found, 4, instance_type="g4dn.xlarge", top=100):
        if r.cluster.gpu_count in by_size:
            assert r.speedup == pytest.approx(by_size[r.cluster.gpu_count])
    other = deepvm.recommend(found, 3, instance_type="g5.xlarge")
    assert {r.speedup_kind for r in other} == {"hybrid"}
    asked = deepvm.recommend(found, 3, instance_type="g4dn.xlarge", speedup="hybrid")
    assert {r.speedup_kind for r in asked} == {"hybrid"}


def test_two_sizes_are_too_few_to_go_by() -> None:
    """From S(2) = 1.9 alone the ring says S(32) = 29, where the paper measured 5."""
    found = apply(tables(scaling("g4dn.xlarge", ((1, 1), (2, 1.9)))), PAPER)
    assert found["g4dn.xlarge"].default_speedup == ""
    assert found["g4dn.xlarge"].curve("measured") is not None
    assert "at 1 size above 1, too few" in found.provenance.doubts[0]
    assert deepvm.recommend(found, 3)[0].speedup == deepvm.recommend(PAPER, 3)[0].speedup


def test_the_curve_of_the_eflops_workload_counts() -> None:
    slow, fast = ((2, 1.1), (4, 1.2), (8, 1.3)), ((2, 1.9), (4, 3.8), (8, 7.5))
    curves = (
        scaling("g4dn.xlarge", slow),
        scaling("g4dn.xlarge", fast, DAY + timedelta(1), workload=OTHER),
    )
    last = apply(tables(*curves), PAPER)["g4dn.xlarge"]
    same = apply(tables(*curves, eflops("g4dn.xlarge")), PAPER)["g4dn.xlarge"]
    asked = apply(tables(*curves), PAPER, "resnet50")["g4dn.xlarge"]
    assert [i.curve("measured").points[-1][1] for i in (last, same, asked)] == [7.5, 1.3, 1.3]  # type: ignore[union-attr]
    assert {c.workload for c in last.speedups if c.kind == "measured"} >= {
        None,
        "resnet18/224px/b64/float32/adam",
    }


def test_a_local_run_is_doubted() -> None:
    found = apply(tables(scaling("g4dn.xlarge", local=True)), PAPER)
    assert any("processes of one machine" in d for d in found.provenance.doubts)


EFFICIENT = {**WORKLOAD, "model": "efficientnet_v2_m"}
STEEP = ((1, 1), (2, 1.9), (4, 3.8), (8, 7.5), (16, 14))


def test_a_curve_beside_the_catalogs_is_doubted() -> None:
    """It turns the plan round, and nobody knows what the other curves and the eFLOPS are of."""
    found = apply(tables(scaling("g5.xlarge", STEEP, workload=EFFICIENT)), PAPER)
    curves, speeds = found.provenance.doubts
    name = "efficientnet_v2_m/224px/b64/float32/adam"
    assert curves.startswith(f"the speed-up of g5.xlarge was measured here with {name}, and ")
    assert "g3s.xlarge, g4dn.xlarge go by the catalog's" in curves
    assert f"'deepvm profile scaling' with {name} on g3s.xlarge, g4dn.xlarge too" in curves
    assert "eFLOPS of g5.xlarge are the catalog's" in speeds and "'deepvm profile eflops'" in speeds
    asked = apply(tables(scaling("g5.xlarge", STEEP, workload=EFFICIENT)), PAPER, "efficientnet")
    assert asked == found


def test_what_is_measured_whole_with_one_workload_is_not_doubted() -> None:
    entries = [measure(n) for n in NAMES for measure in (eflops, scaling)]
    assert not apply(tables(*entries), PAPER).provenance.doubts
    without = [e for e in entries if e.kind == "scaling"]
    (doubt,) = apply(tables(*without), PAPER).provenance.doubts
    assert doubt.startswith("the eFLOPS of ")


def test_curves_of_two_workloads_do_not_count_together() -> None:
    curves = (
        scaling("g4dn.xlarge"),
        scaling("g5.xlarge", STEEP, DAY + timedelta(1), workload=EFFICIENT),
    )
    last = apply(tables(*curves), PAPER)
    assert [m.subject for m in last.provenance.measured] == ["g5.xlarge"]
    assert last["g4dn.xlarge"].curve("measured") == PAPER["g4dn.xlarge"].curve("measured")
    assert "speed-up of g4dn.xlarge was measured with resnet50/" in last.provenance.notes[0]
    assert any(c.workload for c in last["g4dn.xlarge"].speedups)  # kept, as one of its workload
    more = apply(tables(*curves, scaling("g3s.xlarge")), PAPER)
    assert {m.subject for m in more.provenance.measured} == {"g3s.xlarge", "g4dn.xlarge"}
    speed = apply(tables(*curves, eflops("g4dn.xlarge")), PAPER)
    assert {(m.kind, m.subject) for m in speed.provenance.measured} == {
        ("eflops", "g4dn.xlarge"),
        ("scaling", "g4dn.xlarge"),
    }
    asked = apply(tables(*curves), PAPER, "resnet50")
    assert [m.subject for m in asked.provenance.measured] == [
        "g4dn.xlarge"
    ] and not asked.provenance.notes


def test_a_curve_of_two_sizes_does_not_choose_the_workload() -> None:
    short = [
        scaling(n, ((1, 1), (2, 1.9)), DAY + timedelta(1), workload=OTHER)
        for n in ("g3s.xlarge", "g5.xlarge")
    ]
    found = apply(tables(scaling("g4dn.xlarge"), *short), PAPER)
    assert [m.subject for m in found.provenance.measured] == ["g4dn.xlarge"]


def test_a_csv_that_names_the_model_alone_is_of_its_workload() -> None:
    of_csv = scaling("g5.xlarge", workload={"model": "resnet50"})
    found = apply(
        tables(scaling("g4dn.xlarge"), of_csv, eflops("g4dn.xlarge"), eflops("g5.xlarge", 2e12)),
        PAPER,
    )
    assert len(found.provenance.measured) == 4
    assert not any("was measured with" in d for d in found.provenance.doubts)


def test_a_curve_without_measured_speeds_of_its_workload_counts_with_a_doubt() -> None:
    found = apply(tables(eflops("g4dn.xlarge"), scaling("g4dn.xlarge", workload=OTHER)), PAPER)
    assert found["g4dn.xlarge"].default_speedup == "measured"
    assert any(
        "measured with resnet18/224px" in d and "its eFLOPS with resnet50/" in d
        for d in found.provenance.doubts
    )


def test_the_beginning_of_a_model_is_a_workload_unless_two_begin_so() -> None:
    both = tables(scaling("g4dn.xlarge"), scaling("g5.xlarge", workload=OTHER))
    assert apply(both, PAPER, "resnet1").provenance.measured[0].subject == "g5.xlarge"
    assert apply(both, PAPER, "resnet50/224px").provenance.measured[0].subject == "g4dn.xlarge"
    with pytest.raises(RequestError, match="resnet18/224px.*resnet50/224px"):
        apply(both, PAPER, "resnet")


def test_every_entry_that_is_not_used_has_a_reason() -> None:
    entries = {
        "": [eflops("g4dn.xlarge"), scaling("g4dn.xlarge"), saturation(18, 10)],
        "no type z9.huge": [eflops("z9.huge"), scaling("z9.huge")],
        "neither a type a nor b": [saturation(2, 10, sender="a", receiver="b")],
        "measured on the processors of g": [
            eflops("g4dn.xlarge", 1e9, device="cpu"),
            scaling("g3s.xlarge", device="cpu"),
        ],
        "c5.xlarge has no GPU": [
            eflops("c5.xlarge"),
            scaling("c5.xlarge", machine={"gpus": ["T4"]}),
        ],
        "do not compare": [
            eflops("g5.xlarge", workload=OTHER),
            scaling("g5.xlarge", workload=OTHER),
        ],
        "resnet50/224px/b64/float32/adam counts for g4dn": [scaling("g4dn.xlarge", workload=OTHER)],
        "no saturation was seen up to 3": [saturation(None, 10, upto=3, transport="mpi")],
    }
    found = reasons(tables(*(e for es in entries.values() for e in es)), PAPER)
    for why, those in entries.items():
        for entry in those:
            assert why in found[entry.name] if why else found[entry.name] == "", entry.name


# --- saturation ---


def rows(table: SaturationTable) -> dict[float, int]:
    return dict(zip(table.network_gbps, map(int, table.n_sat), strict=True))


def test_a_measured_pair_replaces_the_row_of_its_bandwidth() -> None:
    found = apply(tables(saturation(18, 10)), PAPER)
    assert rows(found.n_sat) == {**rows(PAPER_TABLE), 10: 18}
    assert not found.provenance.notes


def test_rows_that_contradict_give_way_and_it_is_said() -> None:
    found = apply(tables(saturation(13, 10)), PAPER)
    assert rows(found.n_sat) == {**rows(PAPER_TABLE), 5: 13, 10: 13}
    assert found.provenance.notes == (
        "n_sat at 5 Gbit/s comes down from 16 to 13, measured here at more bandwidth",
    )
    more = apply(tables(saturation(26, 10)), PAPER)
    assert rows(more.n_sat) == {0.3: 3, 1.7: 12, 5: 16, 10: 26, 25: 28, 30: 32}
    assert len(more.provenance.notes) == 2


def test_the_smaller_bandwidth_of_a_pair_counts_and_the_catalog_knows_it() -> None:
    ends = {"sender_gbps": 25, "receiver_gbps": 10}
    assert rows(apply(tables(saturation(18, **ends)), PAPER).n_sat)[10] == 18
    # G4dn.xlarge 25, c5.xlarge 10
    assert rows(apply(tables(saturation(18, None)), PAPER).n_sat)[10] == 18
    unknown = apply(tables(saturation(18, None, receiver="z9.huge")), PAPER)
    assert (
        unknown.n_sat == PAPER_TABLE
        and "the bandwidth of the pair is unknown" in unknown.provenance.notes[0]
    )


def test_the_row_stands_where_the_planner_looks() -> None:
    """One stream reached 4.6 Gbit/s, but the catalog's g4dn.xlarge has 25 and its c5.xlarge 10."""
    found = apply(tables(saturation(18, None, sender_gbps=4.6, receiver_gbps=9.4)), PAPER)
    assert rows(found.n_sat) == {**rows(PAPER_TABLE), 10: 18}
    elsewhere = replace(PAPER, instances=tuple(i for i in PAPER if i.name != "c5.xlarge"))
    lone = tables(saturation(18, None, sender_gbps=4.6, receiver_gbps=9.4))
    # Another region knows the type
    assert apply(lone, elsewhere, among=(PAPER, elsewhere)).n_sat == found.n_sat
    assert rows(apply(lone, elsewhere).n_sat)[9.4] == 18


def test_a_row_of_a_memory_node_stands_at_what_its_network_sustains() -> None:
    """Where that is what the planner looks up.

    The senders count with the bandwidth that they are given.
    """
    node = cpu_type("node", network_gbps=12.5, network_baseline_gbps=0.937)
    entry = tables(saturation(9, None, sender="gpu.xlarge", receiver="node"))
    for rule, gbps in ((REAL_NODES, 0.937), (PAPER_NODES, 12.5)):
        found = apply(entry, catalog(gpu_type(), node, memory_nodes=rule))
        assert rows(found.n_sat)[gbps] == 9
        for trainers, nodes in ((8, 1), (9, 2)):
            best = deepvm.recommend(found, 100, architecture="tiering", max_nodes=trainers)[
                0
            ].cluster
            assert best.memory is not None and (best.gpu_count, best.memory.count) == (
                trainers,
                nodes,
            )


def test_a_pair_of_unknown_types_changes_nothing() -> None:
    assert apply(tables(saturation(2, 10, sender="a", receiver="b")), PAPER) is PAPER


def test_no_saturation_seen_is_no_upper_bound() -> None:
    """Three senders that do not saturate the receiver speak for no more memory nodes than the
    paper's 20 do.
    """
    few = apply(tables(saturation(None, 10, upto=3)), PAPER)
    assert few.n_sat == PAPER_TABLE and not few.provenance.measured
    assert few.provenance.notes == (
        (
            "n_sat of g4dn.xlarge to c5.xlarge stays 20: no saturation was seen up to 3 senders; "
            "measure with more to know it"
        ),
    )
    many = apply(tables(saturation(None, 10, upto=26)), PAPER)
    assert rows(many.n_sat) == {0.3: 3, 1.7: 12, 5: 16, 10: 26, 25: 28, 30: 32}
    both = (saturation(None, 10, upto=26), saturation(None, 5, upto=40, receiver="unknown"))
    # One bound does not limit another
    assert rows(apply(tables(*both), PAPER).n_sat) == {0.3: 3, 1.7: 12, 5: 40}
    knee = apply(tables(saturation(7, 10), saturation(None, 10, upto=26, transport="mpi")), PAPER)
    assert rows(knee.n_sat)[10] == 7


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 5.0, 10.0, 25.0]), st.integers(2, 40), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_bounds_lift_up_to_the_knees(pairs: list[tuple[float, int, bool]]) -> None:
    known = Catalog(
        "r",
        tuple(
            replace(PAPER["c5.xlarge"], name=f"r{i}", network_gbps=p[0])
            for i, p in enumerate(pairs)
        ),
    )
    among = (replace(PAPER, instances=(*PAPER, *known)),)
    entries = [
        saturation(n if seen else None, None, receiver=f"r{i}", upto=n)
        for i, (_, n, seen) in enumerate(pairs)
    ]
    found = apply(tables(*entries), PAPER, among=among).n_sat
    only_knees = apply(tables(*(e for e in entries if e.senders[1])), PAPER, among=among).n_sat
    for gbps, n, seen in pairs:
        cap = min((m for g, m, s in pairs if s and g >= gbps), default=10**6)
        assert found.lookup(gbps) >= min(n, cap)
        assert found.lookup(gbps) <= cap
        assert seen or found.lookup(gbps) >= only_knees.lookup(gbps)


PAIRS = st.lists(
    st.tuples(st.sampled_from([0.2, 0.3, 1.0, 5.0, 10.0, 11.0, 25.0, 40.0]), st.integers(1, 40)),
    max_size=5,
)


@settings(max_examples=examples(150))
@given(PAIRS)
def test_the_table_keeps_its_order_and_never_promises_more_than_was_measured(
    pairs: list[tuple[float, int]],
) -> None:
    # The sender has more than any of them, so the bandwidth of the receiver, which nobody knows, is
    # the pair's.
    fast = replace(PAPER, instances=tuple(replace(i, network_gbps=100.0) for i in PAPER))
    entries = [saturation(n, g, receiver=f"r{i}") for i, (g, n) in enumerate(pairs)]
    found = apply(tables(*entries), fast).n_sat
    assert list(found.n_sat) == sorted(found.n_sat)
    for gbps, n in pairs:
        assert found.lookup(gbps) <= n
        assert found.lookup(gbps) == min(m for g, m in pairs if g >= gbps)
    own = {g: min(m for other, m in pairs if other >= g) for g, _ in pairs}
    for gbps, n in rows(PAPER_TABLE).items():
        low = max([m for g, m in own.items() if g <= gbps], default=0)
        high = min([m for g, m in own.items() if g >= gbps], default=10**6)
        assert found.lookup(gbps) == min(max(n, low), high)
