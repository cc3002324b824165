"""Job files: what they may say, and what is said about the others."""

from __future__ import annotations

import contextlib
import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.job import Job, Span
from deepvm.documents.declared import properties
from deepvm.errors import DeepVMError, JobFormatError, RequestError
from deepvm.simulator.jobfile import PRESETS, job_document, parse_job, preset

FULL = """
name: a b
steps: 1000
step_s: [1.5, 2]
save_s: 3
backup_s: [4, 5]
allocation_s: 6
preparation_s: 7
grace_s: [0, 120]
mttp_s: [3600, 7200.5]
save_every_steps: 100
spot_usd_per_hour: 1
on_demand_usd_per_hour: 2.5
market: on-demand
missed_notice_rate: 0.25
stall_s: 0.5
memory_node_s: 17
warm_preparation_s: [1, 2]
proactive_replacement: true
vms: 4
elastic: true
lifetime: weibull:0.65
"""

KEYS = properties("job_file.JobDocument")


def test_every_key_is_read() -> None:
    job = parse_job(FULL, "job.yaml")
    assert job == Job(
        name="a b",
        steps=1000,
        step_s=Span(1.5, 2),
        save_s=Span(3, 3),
        backup_s=Span(4, 5),
        allocation_s=Span(6, 6),
        preparation_s=Span(7, 7),
        grace_s=Span(0, 120),
        mttp_s=(3600.0, 7200.5),
        save_every_steps=100,
        spot_usd_per_hour=1,
        on_demand_usd_per_hour=2.5,
        market=Market.ON_DEMAND,
        missed_notice_rate=0.25,
        stall_s=Span(0.5, 0.5),
        memory_node_s=Span(17, 17),
        warm_preparation_s=Span(1, 2),
        proactive_replacement=True,
        vms=4,
        elastic=True,
        lifetime="weibull:0.65",
    )
    assert set(yaml.safe_load(FULL)) == set(KEYS) == set(Job.__dataclass_fields__)


@pytest.mark.parametrize(
    "text", [FULL, "steps: 1\nstep_s: 1\n", "steps: 1\nstep_s: 1\nmttp_s: null\nstall_s: ~\n"]
)
def test_a_job_comes_back_from_its_document(text: str) -> None:
    job = parse_job(text, "x")
    assert parse_job(yaml.safe_dump(job_document(job)), "y") == job


def test_presets_are_the_thesiss() -> None:
    small, large = (preset(name) for name in PRESETS)
    assert small.step_s.mean == pytest.approx(4.60001) and large.backup_s == Span(120, 160)
    assert small.mttp_s == large.mttp_s == (10800.0,) and small.save_every_steps == 10000
    with pytest.raises(RequestError, match="gpt-117m or gpt-1.3b"):
        preset("gpt-2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step_s: [2, 1]", "job.yaml:2: invalid value for step_s: a list of 2 (expected seconds"),
        ("step_s: [1, 2, 3]", "step_s: a list of 3 (expected seconds"),
        ("step_s: .nan", "step_s: nan (expected seconds"),
        ("step_s: 1.0e+11", "step_s: 100000000000.0 (expected seconds"),
        ("step_s: 1.0e-10", "job.yaml:2: step_s: a step of 1e-10 s (expected at least 1e-09 s)"),
        ("step_s: 1\nvms: 10001", "job.yaml:3: invalid value for vms: 10001 (Input should be"),
        ("step_s: 1\nmttp_s: 0", "mttp_s: 0 (expected seconds above 0, without a unit"),
        ("step_s: 1\nmttp_s: []", "mttp_s: a list of 0 (expected"),
        ("step_s: 1\nvms: null", "vms: null (expected a number"),
        ("step_s: 1\nlifetime: lomax:1", "job.yaml:3: lifetime: 'lomax:1' (expected exponential"),
        ("step_s: 1\nsave_s: 2\nstall_s: 3", "stall_s: 3 s is more than the whole save of 2 s"),
    ],
)
def test_what_cannot_be(text: str, message: str) -> None:
    with pytest.raises(JobFormatError) as error:
        parse_job(f"steps: 10\n{text}\n", "job.yaml")
    assert message in str(error.value)


def test_numbers_may_be_written_as_json_does() -> None:
    job = parse_job(
        "steps: 1e3\nstep_s: 1e-05\nsave_s: [1e-3, 2E-3]\nmttp_s: 1.5e4\nname: '1e3'\n", "x"
    )
    assert (job.steps, job.step_s, job.save_s, job.mttp_s) == (
        1000,
        Span.of(1e-5),
        Span(1e-3, 2e-3),
        (15000.0,),
    )
    assert job.name == "1e3" and isinstance(job.steps, int)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=examples(400))
@given(st.dictionaries(st.sampled_from([*KEYS, "else"]), values, max_size=6), st.booleans())
def test_whatever_a_file_says_it_is_a_job_or_an_error_that_names_the_place(
    found: dict[str, object], base: bool
) -> None:
    text = yaml.safe_dump({"steps": 5, "step_s": 2, **found} if base else found, allow_unicode=True)
    try:
        job = parse_job(text, "job.yaml")
    except DeepVMError as error:
        assert str(error).startswith("job.yaml:")
    else:
        assert job.steps >= 1 and 0 < job.step_s.high < math.inf


@given(st.binary(max_size=60))
def test_no_bytes_bring_anything_else_to_light(data: bytes) -> None:
    with contextlib.suppress(JobFormatError):
        parse_job(data.decode("utf-8", "replace"), "job.yaml")
