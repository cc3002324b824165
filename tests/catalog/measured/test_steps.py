"""Measured steps in the planner's words: of which workload, and which speeds they replace."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from support.profiling.measurements import DAY, scaling_document, tables
from support.profiling.step_runs import LAW, scaling_runs, seconds, steps_of

from deepvm import load_catalog
from deepvm.catalog.measured.apply import apply_steps, reasons
from deepvm.catalog.measured.entries import Entry
from deepvm.catalog.measured.steps import MeasuredPerformance, StepTimes, step_times, trained_as
from deepvm.catalog.measured.tables import entry_of
from deepvm.catalog.published.hardware import find_accelerator
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.training.measured_speed import OwnSteps, of_measured
from deepvm.core.training.speed import Source, TrainingSpeed
from deepvm.core.training.steptime import Steps, StepTimeFit, fit_steps
from deepvm.core.training.workload import Workload
from deepvm.core.units import Z80
from deepvm.errors import CatalogFormatError
from deepvm.profiling.fit.step_fit import fit_step_time

RESNET = read_workload(model="resnet50")


@pytest.fixture(scope="module")
def aws() -> Catalog:
    return load_catalog("aws", offline=True)


def steps(kind: str = "g4dn.xlarge", when: Any = DAY, **changes: Any) -> Entry:
    return entry_of(scaling_runs(**changes), measured_at=when, instance_type=kind)


def law_entry(kind: str = "p4d.24xlarge", **workload: Any) -> Entry:
    clusters = [(1, 8), (2, 16), (4, 32)]
    found = fit_step_time(steps_of(LAW, clusters, (2, 4, 8), noise=0.01))
    about = {
        "model": "llama-8b",
        "method": "fsdp",
        "precision": "bf16",
        "sequence": 2048,
        "software": "eager",
    }
    document = found.saved(about | workload, {"gpus": ["A100 40GB"]})
    return entry_of(document, measured_at=DAY, instance_type=kind)


def only(entry: Entry, aws: Catalog) -> StepTimes:
    (found,), unused = step_times([entry], aws.by_name)
    assert not unused
    return found


def speed(
    own: list[Entry], aws: Catalog, kind: str, vms: list[int], workload: Workload = RESNET
) -> TrainingSpeed:
    source = tables(*own).speeds(PublishedPerformance(), aws.by_name)
    found = source.speed(aws[kind], workload, np.array(vms, dtype=np.float64))
    assert isinstance(found, TrainingSpeed)
    return found


# --- which workload it is ---


def test_what_profile_scaling_trained_in_the_words_of_recommend(aws: Catalog) -> None:
    found = only(steps(), aws)
    assert found.trained.model == "resnet50" and found.trained.method == "ddp"
    assert found.gpu == find_accelerator("T4") and len(found.steps) == 30
    assert not found.trained.differs(RESNET, found.gpu, "eager")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"resolution": 32}, "images of 32 pixels, and recommend trains resnet50 with 224"),
        ({"model": "mine:net"}, "measure with --trains"),
        ({"dtype": "float64"}, "the precision of float64 is unknown"),
        ({"resolution": "224x224"}, "the size of images is '224x224'"),
        ({"sequence": "long"}, "the size of sequences is 'long'"),
    ],
)
def test_what_the_planner_cannot_know_is_named(
    changes: dict[str, Any], why: str, aws: Catalog
) -> None:
    entry = steps(**changes)
    said = trained_as(entry)
    assert isinstance(said, str) and why in said
    assert step_times([entry], aws.by_name) == ((), {entry.name: said})


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"model": "resnet18"}, "measured with resnet50, and resnet18 is trained"),
        ({"precision": "fp32"}, "measured with fp16, and fp32 is trained"),
        ({"method": "fsdp"}, "measured with ddp, and fsdp is trained"),
    ],
)
def test_steps_of_another_workload_say_nothing(
    asked: dict[str, str], why: str, aws: Catalog
) -> None:
    found, workload = only(steps(), aws), read_workload(**{"model": "resnet50", **asked})
    assert found.gpu is not None and found.trained.differs(workload, found.gpu, "eager") == why
    published = PublishedPerformance().speed(aws["g4dn.xlarge"], workload, np.ones(1))
    assert isinstance(published, TrainingSpeed)
    own = speed([steps()], aws, "g4dn.xlarge", [1], workload)
    assert own.source is published.source and own.step_s == pytest.approx(published.step_s)


def test_steps_of_other_software_sequences_or_checkpointing_say_nothing() -> None:
    gpu = find_accelerator("A100", 40)
    found = trained_as(law_entry(activation_checkpointing=True))
    assert gpu is not None and not isinstance(found, str)
    llama = read_workload(model="llama-8b", method="fsdp")
    assert not found.differs(llama, gpu, "eager")
    assert (
        found.differs(llama, gpu, "compiled")
        == "measured with software eager, and software compiled is trained"
    )
    assert "sequences of 2048" in found.differs(
        read_workload(model="llama-8b", method="fsdp", seq=4096), gpu, "eager"
    )
    without = replace(llama, checkpointing=False)
    assert found.differs(without, gpu, "eager") == "measured with activation checkpointing"


def test_float32_of_convolutions_is_tf32_where_the_gpu_has_it() -> None:
    """As torch has it; of a transformer it is float32."""
    found = trained_as(steps(dtype="float32"))
    ampere, turing = find_accelerator("A100", 40), find_accelerator("T4")
    assert not isinstance(found, str) and ampere is not None and turing is not None
    assert not found.differs(read_workload(model="resnet50", precision="tf32"), ampere, "eager")
    assert found.differs(read_workload(model="resnet50", precision="fp32"), ampere, "eager")
    assert not found.differs(read_workload(model="resnet50", precision="fp32"), turing, "eager")
    text = trained_as(
        steps(model="mine:net", trains="gpt2", sequence=1024, resolution=None, dtype="float32")
    )
    assert not isinstance(text, str)
    assert not text.differs(read_workload(model="gpt2", precision="fp32"), ampere, "eager")


def test_a_model_of_ones_own_is_known_by_its_name(aws: Catalog) -> None:
    found = only(steps(model="mine:net", trains="my net", resolution=None), aws)
    own = replace(RESNET, model=replace(RESNET.model, name="my net"))
    assert found.gpu is not None and not found.trained.differs(own, found.gpu, "eager")


# --- which steps count ---


def test_processes_of_one_machine_say_nothing_of_several_vms(aws: Catalog) -> None:
    entry = entry_of(scaling_runs() | {"local": True}, measured_at=DAY, instance_type="g4dn.xlarge")
    assert {n for n, *_ in entry.steps} == {1}
    assert only(entry, aws).own.measured.several == 0


def test_steps_of_processors_and_of_unknown_types(aws: Catalog) -> None:
    slow, cpu, moon = steps(device="cpu"), steps("c5.large"), steps("moon.1")
    found, unused = step_times([slow, cpu, moon], aws.by_name)
    assert [f.instance_type for f in found] == ["moon.1"] and found[0].gpu == find_accelerator("T4")
    assert (
        "on the processors of g4dn.xlarge" in unused[slow.name] and "has no GPU" in unused[cpu.name]
    )


def test_too_few_steps_are_named(aws: Catalog) -> None:
    few = steps(sizes=(1, 2), batches=(64,), repeats=1)
    assert step_times([few], aws.by_name)[1][few.name].startswith(
        "2 steps of 2 clusters and batches: a law of them"
    )
    assert reasons(tables(few), aws)[few.name] == ""  # its curve may still count


def test_curves_without_times_are_read_as_before(aws: Catalog) -> None:
    old = entry_of(scaling_document(), measured_at=DAY, instance_type="g4dn.xlarge")
    assert not old.steps and step_times([old], aws.by_name) == ((), {})
    runs = scaling_runs()
    for run in runs["runs"]:
        del run["batch"]  # as files were written while there was one batch
    older = entry_of(runs, measured_at=DAY, instance_type="g4dn.xlarge")
    assert {batch for *_, batch, _ in older.steps} == {128.0}


def test_two_measurements_of_one_workload_count_together(aws: Catalog) -> None:
    """The second adds batches; a law of both knows all of them."""
    first, second = steps(batches=(128, 64)), steps(batches=(32, 16), when=DAY + timedelta(days=1))
    (found,), _ = step_times([first, second], aws.by_name)
    assert found.own.measured.batch == (16.0, 128.0) and len(found.steps) == 40


def test_a_saved_law_needs_no_scipy(aws: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, bare = law_entry(), steps()
    for name in ("scipy", "scipy.optimize"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("deepvm.catalog.measured.steps.find_spec", lambda name: None)
    found, unused = step_times([entry, bare], aws.by_name)
    assert len(found) == 1 and "to fit one needs scipy" in unused[bare.name]
    assert only(entry, aws).fit == StepTimeFit.of_document(entry.document["fit"])


def test_a_law_that_was_saved_with_a_scaling_is_the_one_that_plans(aws: Catalog) -> None:
    own = scaling_runs()
    plain = entry_of(own, measured_at=DAY, instance_type="g4dn.xlarge")
    fitted = fit_steps(only(plain, aws).steps).as_document()
    saved = entry_of(own | {"step_time": fitted}, measured_at=DAY, instance_type="g4dn.xlarge")
    assert only(saved, aws).fit == only(plain, aws).fit


# --- which speeds they replace ---


def test_measured_beats_published_and_derived(aws: Catalog) -> None:
    found = speed([steps()], aws, "g4dn.xlarge", [1, 4, 8])
    assert found.source is Source.MEASURED and found.fitted_vms == 8
    assert found.step_s == pytest.approx([seconds(LAW, n, n, 128) for n in (1, 4, 8)], rel=0.02)


def test_other_types_with_the_gpu_take_its_gradients_and_others_nothing(aws: Catalog) -> None:
    published = PublishedPerformance()
    for kind, changed in (("g4dn.12xlarge", True), ("g5.xlarge", False)):
        own, known = (
            speed([steps()], aws, kind, [1]),
            published.speed(aws[kind], RESNET, np.ones(1)),
        )
        assert isinstance(known, TrainingSpeed)
        assert bool(own.step_s[0] != known.step_s[0]) is changed and own.source is known.source


def test_of_several_measured_types_the_nearest_in_size_speaks_for_another(aws: Catalog) -> None:
    slow = replace(LAW, grad_per_sample=0.04)
    small, big = steps(), steps("g4dn.metal", law=slow, per_vm=8, sizes=(1, 2))
    one, twelve = (
        speed([small, big], aws, kind, [1]) for kind in ("g4dn.2xlarge", "g4dn.12xlarge")
    )
    assert one.step_s[0] == pytest.approx(seconds(LAW, 1, 1, 128), rel=0.05)
    assert next(one.doubts(0)).startswith("gradients are those measured on g4dn.xlarge")
    assert next(twelve.doubts(0)).startswith("gradients are those measured on g4dn.metal")


def test_a_law_of_ones_own_training(aws: Catalog) -> None:
    llama = read_workload(model="llama-8b", method="fsdp", batch_per_gpu=4)
    found = speed([law_entry()], aws, "p4d.24xlarge", [2], llama)
    assert found.source is Source.MEASURED
    assert found.step_s[0] == pytest.approx(seconds(LAW, 2, 16, 4), rel=0.03)


def test_a_machine_of_no_named_type_is_the_measured_one_with_as_many_gpus(aws: Catalog) -> None:
    source = tables(steps()).speeds(PublishedPerformance(), {})
    gpu = find_accelerator("T4")
    assert isinstance(source, MeasuredPerformance) and gpu is not None
    one, four = (source.cluster(gpu, RESNET, 4, nodes) for nodes in (4, 1))
    assert one.source is Source.MEASURED and four.source is Source.DERIVED
    assert tables().speeds(PublishedPerformance(), {}) == PublishedPerformance()


def test_types_without_speed_stay_without(aws: Catalog) -> None:
    source = tables(steps()).speeds(PublishedPerformance(), aws.by_name)
    assert source.speed(InstanceType("c5.large", 2), RESNET, np.ones(1)) == "it has no GPU"


@pytest.mark.parametrize("most", [1, 4])
def test_single_vms_and_the_published_network_hold_what_they_promise(most: int) -> None:
    """Published steps on T4: laws of single GPUs, or of single VMs, say what larger clusters take.

    Four of five within.

    The published network has seen these steps, so this is the doubt that was chosen, not a proof of
    it.
    """
    from deepvm.catalog.published.rows import published

    rows = [r for r in published() if r.source == "pollux"]
    source, errors, widths = PublishedPerformance(), [], []
    for name in ("bert-base", "resnet50", "yolov3"):
        own = [r for r in rows if r.workload.model.name == name]
        small = [r for r in own if r.vms == 1 and r.machine.gpus <= most]
        times = [
            (1, r.machine.gpus, r.workload.batch, r.machine.gpus * r.workload.batch / r.throughput)
            for r in small
        ]
        law = OwnSteps(
            "g4dn.12xlarge", fit_steps(Steps(*np.array(times, dtype=np.float64).T)), reads=True
        )
        for row in [r for r in own if r not in small][::6]:
            vms, asked = np.array([float(row.vms)]), replace(row.workload, precision=row.precision)
            base = source.of_machine(row.machine, asked, vms)
            assert isinstance(base, TrainingSpeed)
            reference = source.parts(replace(row.machine, gpus=1), asked, np.ones(1))
            found = of_measured(law, base, reference)
            errors.append(abs(np.log(found.throughput[0] / row.throughput)))
            widths.append(Z80 * found.sd[0])
    held = np.mean(np.array(errors) < np.array(widths))
    assert len(errors) > 100 and np.median(errors) < 0.08
    assert 0.7 < held < 0.92 and np.median(widths) < 0.25


# --- what a catalog says of them ---


def test_a_catalog_names_the_steps_and_the_runs(aws: Catalog) -> None:
    found = apply_steps([steps()], aws, RESNET, "eager")
    (measured,) = found.catalog.provenance.measured
    assert (measured.kind, measured.subject, measured.runs) == ("steps", "g4dn.xlarge", 30)
    assert measured.measured_at == DAY and found.catalog.instances == aws.instances


def test_steps_of_this_model_that_are_not_used_are_named(aws: Catalog) -> None:
    found = apply_steps([steps(dtype="float32")], aws, RESNET, "eager")
    (note,) = found.notes
    assert note == "steps of g4dn.xlarge are not used: measured with fp32, and fp16 is trained"
    assert not found.catalog.provenance.measured and note in found.catalog.provenance.notes
    assert apply_steps([steps(model="resnet18")], aws, RESNET, "eager").catalog is aws


def test_another_gpu_than_the_types_is_doubted(aws: Catalog) -> None:
    odd = entry_of(
        scaling_runs() | {"machine": {"gpus": ["NVIDIA A10G"]}},
        measured_at=DAY,
        instance_type="g4dn.xlarge",
    )
    (doubt,) = apply_steps([odd], aws, RESNET, "eager").doubts
    assert doubt.startswith("g4dn.xlarge has T4 GPUs, but this was measured on NVIDIA A10G")


def test_why_a_law_is_not_used(aws: Catalog) -> None:
    unknown, cpu, law = law_entry("moon.1"), law_entry("c5.large"), law_entry()
    found = reasons(tables(unknown, cpu, law), aws)
    assert found[law.name] == "" and "c5.large has no GPU" in found[cpu.name]


# --- files ---


def test_a_law_goes_through_a_file(tmp_path: Any) -> None:
    from deepvm.catalog.measured.tables import encode_tables, read_tables

    file = tmp_path / "t.json"
    file.write_bytes(encode_tables(tables(law_entry(), steps())))
    assert read_tables(file).entries == tables(law_entry(), steps()).entries


WRONG = {
    "no law": (("fit", "law"), None, "fit"),
    "a negative time": (("fit", "law", "grad_fixed"), -1.0, "fit"),
    "no numbers": (("fit", "measured", "scatter"), ["x"], "fit"),
    "sizes that differ": (("fit", "measured", "nodes"), [1, 2], "fit"),
    "other extents": (("fit", "most_gpus"), 999, "fit"),
    "a batch of 0": (("fit", "measured", "batch"), [0.0, 32.0], "fit"),
    "VMs without GPUs": (("fit", "measured", "most_per_vm"), 0, "fit"),
    "milliseconds": (("steps", 0, "step_s"), 5e7, "steps[0].step_s"),
    "no batch": (("steps", 0, "batch"), 0, "steps[0].batch"),
    "fewer GPUs than VMs": (("steps", 0, "gpus"), 0, "steps[0].gpus"),
    "another unit": (("steps", 0, "step_ms"), 5, "steps[0].step_ms"),
    "no such method": (("workload", "method"), "pipeline", "workload.method"),
    "no such precision": (("workload", "precision"), "int8", "workload.precision"),
}


def test_a_damaged_law_is_refused_at_its_place() -> None:
    for case in WRONG:
        path, value, place = WRONG[case]
        document = json.loads(json.dumps(dict(law_entry().document)))
        target: Any = document
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = value
        with pytest.raises(CatalogFormatError) as caught:
            entry_of(document, measured_at=DAY, instance_type="p4d.24xlarge")
        assert [p.key for p in caught.value.problems] == [place]


def test_more_vms_than_gpus_are_refused() -> None:
    document = json.loads(json.dumps(dict(law_entry().document)))
    document["steps"][0] |= {"nodes": 4, "gpus": 2}
    with pytest.raises(CatalogFormatError, match="one or more on each VM"):
        entry_of(document, measured_at=DAY, instance_type="p4d.24xlarge")


def test_a_single_vm_needs_several_batches() -> None:
    assert steps(sizes=(1,)).value == "6 runs of 3 batches on single VMs"
    with pytest.raises(CatalogFormatError, match="no n above 1"):
        steps(sizes=(1,), batches=(64,))
