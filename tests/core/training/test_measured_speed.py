"""Speeds by a user's own steps: the law where it was measured, and nothing beyond it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.profiling.step_runs import LAW, seconds, steps_of

from deepvm.catalog.published.hardware import find_accelerator, interconnect
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import find_model
from deepvm.core.training.measured_speed import OwnSteps, of_alike, of_measured
from deepvm.core.training.roofline import Machine
from deepvm.core.training.speed import Source, TrainingSpeed
from deepvm.core.training.steptime import StepTimeFit, StepTimeLaw, fit_steps
from deepvm.core.training.workload import Scaling, Workload

RESNET = Workload(find_model("resnet50"), batch=64)
ALONE = [(n, n) for n in (1, 2, 4, 8)]
BATCHES = (32, 64, 128)


def machine(name: str = "g4dn.xlarge", gpus: float = 1) -> Machine:
    gpu = find_accelerator("T4", 16)
    assert gpu is not None
    return Machine(gpu, gpus, interconnect(name, 5.0))


def base(on: Machine, vms: list[int], workload: Workload = RESNET) -> TrainingSpeed:
    found = PublishedPerformance().of_machine(on, workload, np.array(vms, dtype=np.float64))
    assert isinstance(found, TrainingSpeed)
    return found


def own(clusters: list[tuple[int, int]], law: StepTimeLaw = LAW, noise: float = 0.0) -> OwnSteps:
    return OwnSteps("g4dn.xlarge", fit_steps(steps_of(law, clusters, BATCHES, noise=noise)))


def measured(
    found: OwnSteps, vms: list[int], on: Machine | None = None, workload: Workload = RESNET
) -> TrainingSpeed:
    on = on or machine()
    reference = PublishedPerformance().parts(on, workload, np.array([float(found.smallest[0])]))
    return of_measured(found, base(on, vms, workload), reference)


def test_where_it_was_measured_the_law_is_used_as_it_is() -> None:
    found = measured(own(ALONE), [1, 2, 4, 8])
    assert found.source is Source.MEASURED and found.fitted_vms == 8 and found.trusted_vms == 12
    for place, n in enumerate((1, 2, 4, 8)):
        assert found.step_s[place] == pytest.approx(seconds(LAW, n, n, 64), rel=0.01)
        assert not list(found.doubts(place))
    assert found.covered is not None and found.covered.all()


def test_its_interval_is_that_of_its_own_residuals() -> None:
    calm, noisy = (own(ALONE, noise=noise) for noise in (0.0, 0.2))
    for fitted in (calm, noisy):
        found = measured(fitted, [1, 4])
        at = [np.array(v, dtype=np.float64) for v in ([1, 4], [1, 4], [64, 64])]
        assert found.sd == pytest.approx(fitted.fit.measured.deviation(*at))
    assert (measured(noisy, [1, 4]).sd > 2 * measured(calm, [1, 4]).sd).all()


def test_beyond_one_and_a_half_times_it_is_marked_and_wider() -> None:
    found = measured(own(ALONE), [8, 12, 13, 32])
    assert found.covered is not None and found.covered.tolist() == [True, True, False, False]
    assert "13 VMs are more than 1.5 times the 8 that were measured on g4dn.xlarge" in list(
        found.doubts(2)
    )
    assert (np.diff(found.sd) > 0).all()


def test_a_batch_far_from_the_measured_ones_is_marked_and_wider() -> None:
    near, far = (
        measured(own(ALONE), [4], workload=Workload(find_model("resnet50"), batch=b))
        for b in (128, 512)
    )
    assert not list(near.doubts(0)) and far.sd[0] > near.sd[0]
    assert any(d.startswith("a batch of 512 is more than 1.5 times off") for d in far.doubts(0))


def test_a_fixed_global_batch_asks_the_law_for_each_share() -> None:
    strong = Workload(find_model("resnet50"), batch=256, scaling=Scaling.STRONG)
    found = measured(own(ALONE), [2, 4, 8], workload=strong)
    assert found.step_s == pytest.approx([seconds(LAW, n, n, 256 / n) for n in (2, 4, 8)], rel=0.02)


def test_single_vms_say_what_gradients_take_and_nothing_of_the_network() -> None:
    """One VM by the law; several with the network of data sheets, as wide as that."""
    alone, published = measured(own([(1, 1)]), [1, 4]), base(machine(), [1, 4])
    assert alone.source is Source.MEASURED and alone.fitted_vms == published.fitted_vms
    assert alone.step_s[0] == pytest.approx(seconds(LAW, 1, 1, 64), rel=0.01)
    assert published.parts is not None and alone.step_s[1] > max(
        alone.step_s[0], published.parts.sync_s[1]
    )
    assert alone.sd[0] < 0.1 < alone.sd[1]
    assert not list(alone.doubts(0))
    (said,) = alone.doubts(1)
    assert said.startswith("network: derived, because only single VMs of g4dn.xlarge were measured")
    assert alone.covered is not None and alone.covered.tolist() == [True, False]


def test_other_sizes_of_vm_take_the_gradients_alone() -> None:
    fitted, big = own(ALONE), machine("g4dn.12xlarge", 4)
    reference = PublishedPerformance().parts(machine(), RESNET, np.ones(1))
    found, published = of_alike(fitted, base(big, [1, 2]), reference), base(big, [1, 2])
    # No word that says more than the weakest part
    assert found.source is published.source is Source.DERIVED
    assert found.step_s[0] >= seconds(LAW, 1, 1, 64) * 0.99
    exact = measured(fitted, [1])
    assert exact.sd[0] < found.sd[0] < published.sd[0]
    assert next(found.doubts(0)).startswith(
        "gradients are those measured on g4dn.xlarge (1 VM, 1 GPU)"
    )


def test_a_vm_of_four_says_what_one_gpu_of_it_takes() -> None:
    """What its GPUs synchronize is taken away, with the doubt that this costs."""
    law = StepTimeLaw(0.02, 0.004, local_fixed=0.02, overlap=2.5)
    four = OwnSteps("g4dn.12xlarge", fit_steps(steps_of(law, [(1, 4)], BATCHES)))
    reference = PublishedPerformance().parts(machine("g4dn.12xlarge", 4), RESNET, np.ones(1))
    found = of_alike(four, base(machine(), [1]), reference)
    assert 0.6 * seconds(law, 1, 1, 64) < found.step_s[0] <= seconds(law, 1, 4, 64)
    assert found.sd[0] > 0.1


def test_what_has_run_fits_whatever_is_estimated_of_its_memory() -> None:
    llama = Workload(find_model("llama-8b"), batch=1)
    assert not base(machine(), [1], llama).fits.any()
    fitted = OwnSteps("g4dn.xlarge", fit_steps(steps_of(LAW, ALONE, (1, 2))))
    assert measured(fitted, [1, 2], workload=llama).fits.all()
    assert not measured(fitted, [1], workload=Workload(find_model("llama-8b"), batch=3)).fits.any()


def test_images_that_were_not_read_are_waited_for_and_read_ones_are_not() -> None:
    """Random images cost nothing to read: 4 vCPUs read 600 a second.

    A user's own job has read its images.
    """
    fast = StepTimeLaw(0.01, 0.0005, network_fixed=0.001)
    few = Machine(machine().accelerator, 1, machine().interconnect, vcpus=4)
    synthetic = own(ALONE, fast)
    job = OwnSteps("g4dn.xlarge", synthetic.fit, reads=True)
    waits, real = measured(synthetic, [1], few), measured(job, [1], few)
    assert waits.throughput[0] == pytest.approx(
        600, rel=0.05
    ) and "vCPUs read about 150" in " ".join(waits.doubts(0))
    assert real.throughput[0] > 1000 and not list(real.doubts(0))


def test_plans_by_one_measurement_share_its_doubt() -> None:
    """What is wrong with one number of these VMs is wrong with the other, and with other sizes of
    VM.
    """
    fitted = own(ALONE)
    reference = PublishedPerformance().parts(machine(), RESNET, np.ones(1))
    speeds = [
        measured(fitted, [1, 2]),
        of_alike(fitted, base(machine("g4dn.12xlarge", 4), [1, 2]), reference),
    ]
    assert all("measured on g4dn.xlarge" in speed.doubt.named for speed in speeds)


laws = st.builds(
    StepTimeLaw,
    grad_fixed=st.floats(0.005, 0.1),
    grad_per_sample=st.floats(0.001, 0.02),
    network_fixed=st.floats(0.02, 0.6),
    network_per_gpu=st.floats(0.0005, 0.01),
    overlap=st.floats(1.2, 4.0),
    straggling=st.floats(0.0, 0.08),
)


@settings(max_examples=examples(20), deadline=None)
@given(laws, st.integers(0, 10**6))
def test_a_fit_finds_the_steps_of_the_law_that_made_them(law: StepTimeLaw, seed: int) -> None:
    """Parameters of a flat direction may differ.

    What they predict inside what was measured does not.
    """
    fit = fit_steps(steps_of(law, ALONE, BATCHES, noise=0.01, seed=seed))
    for nodes, batch in ((1, 48), (3, 96), (6, 64), (8, 128)):
        found, true = fit.predict(nodes, nodes, batch), seconds(law, nodes, nodes, batch)
        assert found.value == pytest.approx(true, rel=0.06)
        assert found.low < true < found.high
    assert fit.law.grad_s(np.ones(1), np.array([64.0]))[0] == pytest.approx(
        seconds(law, 1, 1, 64), rel=0.04
    )


@settings(max_examples=examples(20), deadline=None)
@given(laws)
def test_a_fit_comes_back_from_what_is_saved(law: StepTimeLaw) -> None:
    import json

    fit = fit_steps(steps_of(law, ALONE, BATCHES, noise=0.02))
    assert StepTimeFit.of_document(json.loads(json.dumps(fit.as_document()))) == fit


@settings(max_examples=examples(12), deadline=None)
@given(laws, st.integers(0, 10**6))
def test_more_measurements_of_the_same_widen_nothing_beyond_noise(
    law: StepTimeLaw, seed: int
) -> None:
    """Larger clusters and more batches of one law: intervals inside and outside shrink, or grow by
    chance alone.
    """
    few = fit_steps(steps_of(law, ALONE[:3], BATCHES[1:], noise=0.02, seed=seed))
    many = fit_steps(steps_of(law, ALONE, BATCHES, noise=0.02, seed=seed))
    for nodes, batch in ((1, 64), (4, 128), (8, 64), (16, 32)):
        at = [np.array([float(v)]) for v in (nodes, nodes, batch)]
        assert many.measured.deviation(*at)[0] <= 1.3 * few.measured.deviation(*at)[0]


def test_a_batch_of_all_gpus_is_shared_however_it_divides() -> None:
    """100 images on 3 GPUs: a step takes as long as 34 on one of them, and counts 100."""
    all_together = Workload(find_model("resnet50"), batch=100, scaling=Scaling.STRONG)
    found = measured(own(ALONE), [2, 3, 64, 128], workload=all_together)
    assert found.throughput * found.step_s == pytest.approx([100.0] * 4)
    assert found.step_s[1] == pytest.approx(seconds(LAW, 3, 3, 34), rel=0.01)
    assert found.fits.tolist() == [True, True, True, False], (
        "128 GPUs have no image each, wherever it has run"
    )
