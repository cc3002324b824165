"""Known answers: what practitioners and published runs say of the predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from deepvm.catalog.published.hardware import find_accelerator, interconnect, usual_machine
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import find_model
from deepvm.core.training.roofline import Machine
from deepvm.core.training.speed import READING_SD, Source, TrainingSpeed, waiting
from deepvm.core.training.workload import Method, Precision, Scaling, Workload
from deepvm.core.units import Z80
from deepvm.errors import RequestError

LLAMA = Workload(find_model("llama-8b"), Method.FSDP, batch=8)


def speed(
    workload: Workload, gpu: str, gpus: int, vms: list[int], memory: float | None = None
) -> TrainingSpeed:
    accelerator = find_accelerator(gpu, memory)
    assert accelerator is not None
    _, usual = usual_machine(accelerator)
    found = PublishedPerformance().of_machine(
        replace(usual, gpus=gpus), workload, np.array(vms, dtype=np.float64)
    )
    assert isinstance(found, TrainingSpeed)
    return found


def test_llama_8b_on_a_p5() -> None:
    """6 667 tokens/s a GPU were published (torchtitan, compiled, 8192 tokens).

    Plain PyTorch at 2048 is near that.
    """
    found = speed(LLAMA, "H100", 8, [1])
    assert found.throughput[0] / 8 == pytest.approx(6667, rel=0.2)
    assert found.source is Source.PUBLISHED


def test_two_p5_are_nearly_twice_as_fast_as_one() -> None:
    """Published runs keep 98 % from 8 to 128 GPUs."""
    found = speed(LLAMA, "H100", 8, [1, 2])
    assert 1.9 < found.throughput[1] / found.throughput[0] <= 2


def test_bert_large_on_256_gpus() -> None:
    found = PublishedPerformance("tuned").of_machine(
        Machine(_gpu("A100", 80), 8, interconnect("DGX-A100", None)),
        Workload(find_model("bert-large"), batch=64),
        np.array([1.0, 32.0]),
    )
    assert isinstance(found, TrainingSpeed)
    assert found.throughput[1] / found.throughput[0] == pytest.approx(30.4, rel=0.05)


@pytest.mark.parametrize(("batch", "published", "within"), [(200, 7.3, 0.05), (20, 3.4, 0.12)])
def test_the_batch_matters_more_than_the_vm(batch: int, published: float, within: float) -> None:
    """ResNet-50 on g4dn.12xlarge, one GPU a VM (Pollux)."""
    found = speed(
        Workload(find_model("resnet50"), precision=Precision.FP32, batch=batch), "T4", 1, [1, 8]
    )
    assert found.throughput[1] / found.throughput[0] == pytest.approx(published, rel=within)


def test_an_l4_is_faster_than_a_t4() -> None:
    for model in ["resnet50", "bert-large", "vit-b", "gpt2"]:
        workload = Workload(find_model(model), batch=32)
        assert (
            speed(workload, "L4", 1, [1]).throughput[0]
            > speed(workload, "T4", 1, [1]).throughput[0]
        )


@pytest.mark.parametrize(
    ("model", "method"), [("llama-8b", Method.LORA), ("bert-large", Method.DDP)]
)
def test_an_l4_is_no_faster_than_an_a10g(model: str, method: Method) -> None:
    """Its data sheet promises 1.7 times the FLOP/s; its 72 W sustain less than half of that."""
    workload = Workload(find_model(model), method, batch=8)
    assert (
        speed(workload, "L4", 1, [1]).throughput[0] < speed(workload, "A10G", 1, [1]).throughput[0]
    )


def test_an_h200_is_an_h100_with_more_memory() -> None:
    """Compute-bound models gain little: the die is the same."""
    for model in ["llama-8b", "llama-3b", "gpt2-xl"]:
        workload = Workload(find_model(model), Method.FSDP, batch=8)
        ratio = (
            speed(workload, "H200", 8, [1]).throughput[0]
            / speed(workload, "H100", 8, [1]).throughput[0]
        )
        assert 1.0 <= ratio <= 1.2


def test_the_interval_is_wider_where_less_is_known() -> None:
    published = speed(LLAMA, "H100", 8, [1]).sd[0]
    derived = speed(LLAMA, "L40S", 8, [1]).sd[0]
    assert speed(LLAMA, "L40S", 8, [1]).source is Source.DERIVED
    assert derived > published


def test_where_images_are_waited_for_their_reading_is_in_doubt() -> None:
    """4 vCPUs read 600 images a second, an A10G trains more: what the GPU could do is open and does
    not matter.
    """
    gpu, network = _gpu("A10G", 24), interconnect("g5.xlarge", 10.0)
    workload, one = Workload(find_model("resnet18"), batch=128), np.array([1.0])
    few, many = (
        PublishedPerformance().of_machine(Machine(gpu, 1, network, vcpus=vcpus), workload, one)
        for vcpus in (4, 64)
    )
    assert isinstance(few, TrainingSpeed) and isinstance(many, TrainingSpeed)
    assert few.throughput[0] == pytest.approx(600, rel=0.1) and many.throughput[0] > 1200
    assert few.doubt.named["reading"][0] == pytest.approx(READING_SD, rel=0.1)
    assert few.sd[0] == pytest.approx(READING_SD, rel=0.1)
    assert many.doubt.named["reading"][0] < 0.05 and many.sd[0] > 0.1


def test_the_longer_of_two_uncertain_times() -> None:
    """As drawn a hundred thousand times: its median, how often reading decides, and what the
    interval holds.

    Where one of them is known well, two moments say less of the longer one.
    """
    for ratio in [0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0]:
        for sd, median, held in [(0.05, 0.08, 0.12), (0.2, 0.03, 0.03), (0.4, 0.03, 0.03)]:
            random = np.random.default_rng(7)
            computed, reading = (
                t * np.exp(s * random.standard_normal(100_000))
                for t, s in ((ratio, sd), (1.0, READING_SD))
            )
            longer = np.maximum(computed, reading)
            found = waiting(np.array([ratio]), np.array([sd]), np.ones(1))
            assert found.step_s[0] == pytest.approx(np.median(longer), rel=median)
            assert found.probability[0] == pytest.approx((reading > computed).mean(), abs=0.01)
            low, high = (found.step_s[0] * np.exp(sign * Z80 * found.sd[0]) for sign in (-1, 1))
            assert ((longer >= low) & (longer <= high)).mean() == pytest.approx(0.8, abs=held)


def test_more_vms_never_train_faster_than_that_many_times() -> None:
    """But for sharding, which leaves more room for larger micro-batches and less of the optimizer
    for each GPU.
    """
    for method in [Method.DDP, Method.FSDP, Method.LORA]:
        for batch in [1, 16]:
            models = (
                ("resnet50", "bert-base", "stable-diffusion-2")
                if method is Method.DDP
                else ("llama-8b", "llama-70b")
            )
            for model in models:
                for gpu in ("T4", "A10G", "L4", "A100", "H100", "B200"):
                    found = speed(
                        Workload(find_model(model), method, batch=batch), gpu, 4, list(range(1, 65))
                    )
                    alike = found.fits & (found.micro_batch == found.micro_batch[0]) & found.fits[0]
                    slack = 1e-9 if method is Method.DDP else 0.02
                    assert (found.throughput <= found.vms * found.throughput[0] * (1 + slack))[
                        alike
                    ].all(), (model, gpu)
                    if method is Method.DDP:
                        assert (np.diff(found.step_s) >= -1e-12).all()


def test_no_network_is_faster_than_its_line() -> None:
    """llama-8b with one sample a GPU on two p5: what evidence says of links within VMs is not true
    between them.
    """
    one, two = (speed(replace(LLAMA, batch=1), "H100", 8, [n]).step_s[0] for n in (1, 2))
    assert two >= one * 0.98


def test_what_does_not_fit_says_what_would() -> None:
    found = speed(Workload(find_model("llama-8b")), "A10G", 1, [1, 2, 4])
    assert not found.fits.any()
    assert "24 GiB" in found.needs and "fsdp" in found.needs
    sharded = speed(LLAMA, "A10G", 1, [1, 2])
    assert not sharded.fits.any() and "it fits on" in sharded.needs


def _gpu(name: str, memory: float) -> object:
    found = find_accelerator(name, memory)
    assert found is not None
    return found


def test_a_size_is_as_fast_with_other_sizes_asked_for() -> None:
    """The planner asks for all sizes of a type at once, ``performance predict`` for one."""
    for model in ["llama-70b", "llama-8b", "bert-large", "resnet50"]:
        for scaling in list(Scaling):
            for gpu in ["T4", "A100", "B200"]:
                found = find_model(model)
                method = Method.FSDP if found.parameters > 2e9 else Method.DDP
                batch = 4096 if scaling is Scaling.STRONG else found.batch
                workload = Workload(found, method, batch=batch, scaling=scaling)
                sizes = [1, 2, 3, 7, 20, 64]
                every = speed(workload, gpu, 4, list(range(1, 65)))
                for n in sizes:
                    alone = speed(workload, gpu, 4, [n])
                    assert every.throughput[n - 1] == pytest.approx(alone.throughput[0])
                    assert every.sd[n - 1] == pytest.approx(alone.sd[0])


def test_a_step_larger_than_is_known_to_train_well_is_a_doubt() -> None:
    """8192 images (Goyal et al. 2017): 8 VMs of 8 GPUs with 128 each, and no more, unless the user
    says how many.
    """
    each = speed(Workload(find_model("resnet50"), batch=128), "A100", 8, [8, 9], 40)
    assert each.proven_vms == 8
    assert not any("shown to train" in d for d in each.doubts(0))
    assert (
        "a step has 9,216 images, and up to 8,192 were shown to train as well as few"
        in " ".join(each.doubts(1))
    )
    said = speed(
        Workload(find_model("resnet50"), batch=16384, scaling=Scaling.STRONG), "A100", 8, [9], 40
    )
    assert not any("shown to train" in d for d in said.doubts(0))


def test_no_one_has_said_how_large_a_step_of_other_models_may_be() -> None:
    assert Workload(find_model("sdxl"), batch=100).proven_samples == np.inf
    assert Workload(find_model("llama-8b").with_sequence(8192), batch=1).proven_samples == 512


def test_a_speed_that_cannot_be_had_is_not_shown_as_one() -> None:
    found = speed(Workload(find_model("llama-70b"), Method.DDP, batch=1), "T4", 1, [1])
    assert repr(found) == "<TrainingSpeed: llama-70b on 1 x T4: it does not fit into their memory>"


def test_computing_activations_again_is_never_faster() -> None:
    for model in ["resnet50", "vit-b", "llama-1b", "sdxl"]:
        for gpu in ["T4", "A10G", "H100"]:
            again, once = (
                speed(
                    Workload(find_model(model), batch=8, checkpointing=c), gpu, 1, [1]
                ).throughput[0]
                for c in (True, False)
            )
            assert 0.6 * once < again < once


def test_gpus_are_in_vms_that_exist() -> None:
    found = PublishedPerformance()
    assert found.cluster(_gpu("H100", 80), LLAMA, 9, None).vms.tolist() == [3.0], (
        "8 and 1 are no cluster of one type"
    )
    with pytest.raises(
        RequestError, match=r"nodes: 1 \(expected a number that divides 64 GPUs evenly"
    ):
        found.cluster(_gpu("H100", 80), LLAMA, 64, 1)


def test_eight_bits_mean_a_compiler() -> None:
    eager, compiled = (
        PublishedPerformance(software).cluster(
            _gpu("H100", 80), replace(LLAMA, precision=Precision.FP8), 8, None
        )
        for software in ("eager", "compiled")
    )
    assert eager.throughput[0] == compiled.throughput[0]
    assert any("torch.compile" in doubt for doubt in eager.doubts(0))


def test_more_vms_than_a_network_was_checked_with_are_a_doubt() -> None:
    found = speed(Workload(find_model("llama-8b"), Method.FSDP, batch=1), "A10G", 1, [4, 115])
    assert not any("checked with" in doubt for doubt in found.doubts(0))
    assert any(
        doubt.startswith("115 VMs of 1 x A10G are more than 1.5 times the")
        for doubt in found.doubts(1)
    )
