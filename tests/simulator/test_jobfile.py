"""Job files: what they may say, and what is said about the others."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.job import Job, Span
from deepvm.errors import DataError, DeepVMError, JobFormatError, RequestError
from deepvm.simulator.jobfile import _KEYS, PRESETS, job_document, parse_job, preset, read_job

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
    assert set(yaml.safe_load(FULL)) == set(_KEYS) == set(Job.__dataclass_fields__)


def test_a_job_comes_back_from_its_document() -> None:
    for text in [FULL, "steps: 1\nstep_s: 1\n", "steps: 1\nstep_s: 1\nmttp_s: null\nstall_s: ~\n"]:
        job = parse_job(text, "x")
        assert parse_job(yaml.safe_dump(job_document(job)), "y") == job


def test_presets_are_the_thesiss() -> None:
    small, large = (preset(name) for name in PRESETS)
    assert small.step_s.mean == pytest.approx(4.60001) and large.backup_s == Span(120, 160)
    assert small.mttp_s == large.mttp_s == (10800.0,) and small.save_every_steps == 10000
    with pytest.raises(RequestError, match="gpt-117m or gpt-1.3b"):
        preset("gpt-2")


def test_what_is_said_about_what_cannot_be() -> None:
    for text, said in [
        ("", "empty: a job needs at least steps and step_s"),
        ("steps: [\n", "line 2: not YAML"),
        ("steps: 5\n", "step_s: missing; a job needs it"),
        ("- 1\n", "line 1: keys with values are needed"),
        (
            "steps: -5\nstep_s: 1\n",
            "line 1: steps: -5 cannot be used; allowed: a whole number from 1",
        ),
        ("steps: true\nstep_s: 1\n", "line 1: steps: True cannot be used"),
        (
            "steps: 10\nstep_s: [2, 1]\n",
            "line 2: step_s: [2, 1] cannot be used; allowed: seconds from 0",
        ),
        ("steps: 10\nstep_s: [1, 2, 3]\n", "line 2: step_s: [1, 2, 3] cannot be used"),
        ("steps: 10\nstep_s: 0\n", "line 2: step_s: a step of 0 s"),
        ("steps: 10\nstep_s: .nan\n", "line 2: step_s: nan cannot be used"),
        ("steps: 10\nstep_s: -1\n", "line 2: step_s: -1 cannot be used"),
        ("steps: 10\nstep_s: one\n", "line 2: step_s: 'one' cannot be used"),
        ("steps: 10\nstep_s: 1.0e+11\n", "line 2: step_s: 100000000000.0 cannot be used"),
        (
            "steps: 10\nstep_s: 1.0e-10\n",
            "line 2: step_s: a step of 1e-10 s; allowed: a time from 1e-09 s",
        ),
        (
            "steps: 10\nstep_s: 1\nvms: 10001\n",
            "line 3: vms: 10001 cannot be used; allowed: a whole number from 1 to",
        ),
        (
            "steps: 10\nstep_s: 1\nspot_usd_per_hour: 1.0e+300\n",
            "line 3: spot_usd_per_hour: 1e+300 cannot be used",
        ),
        ("stepz: 10\nstep_s: 1\n", "line 1: stepz: there is no such key; did you mean steps?"),
        ("steps: 10\nstep_s: 1\nsteps: 12\n", "line 3: steps: occurs twice"),
        (
            "steps: 10\nstep_s: 1\nmttp_s: 0\n",
            "line 3: mttp_s: 0 cannot be used; allowed: seconds above 0, without",
        ),
        ("steps: 10\nstep_s: 1\nmttp_s: []\n", "line 3: mttp_s: [] cannot be used"),
        (
            "steps: 10\nstep_s: 1\nmarket: sopt\n",
            "line 3: market: 'sopt' cannot be used; allowed: spot or on-demand",
        ),
        (
            "steps: 10\nstep_s: 1\nmissed_notice_rate: 5\n",
            "line 3: missed_notice_rate: 5 cannot be used",
        ),
        (
            "steps: 10\nstep_s: 1\nlifetime: lomax:1\n",
            "line 3: lifetime: 'lomax:1' cannot be used; allowed: exp",
        ),
        (
            "steps: 10\nstep_s: 1\nelastic: 2\n",
            "line 3: elastic: 2 cannot be used; allowed: true or false",
        ),
        (
            "steps: 10\nstep_s: 1\nsave_s: 2\nstall_s: 3\n",
            "line 4: stall_s: 3 s is more than the whole save of 2 s",
        ),
        (
            "steps: 10\nstep_s: 1\nname: !!python/object:os.system x\n",
            "line 3: name: could not determine",
        ),
        (
            "steps: 10\nstep_s: 1\nelastic: !!bool maybe\n",
            "line 3: elastic: a value does not fit its YAML tag",
        ),
        ('steps: !!int ""\nstep_s: 1\n', "line 1: steps: a value does not fit its YAML tag"),
        (
            "steps: 10\nstep_s: !!timestamp soon\n",
            "line 2: step_s: a value does not fit its YAML tag",
        ),
        ("steps: 10\nstep_s: {a: 1}\n", "line 2: step_s: {'a': 1} cannot be used"),
    ]:
        with pytest.raises(JobFormatError) as error:
            parse_job(text, "job.yaml")
        assert f"job.yaml, {said}" in str(error.value) and error.value.exit_code == 2


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


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(JobFormatError) as error:
        parse_job("stepz: 1\nstep_s: [3, 2]\nvms: 0\n", "j")
    assert len(error.value.problems) == 4  # stepz, step_s, vms, and steps is missing


def test_files_that_are_none(tmp_path: Path) -> None:
    for name, data, said in [
        ("none.yaml", None, "No such file.* give a job file; docs/reference/job-file.md shows one"),
        ("binary.yaml", b"\xff\xfe\x00", "is not UTF-8"),
        ("large.yaml", b"#" * 1_000_001, "has 1000001 characters; give a job file"),
    ]:
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(DataError, match=said):
            read_job(path)
    with pytest.raises(DataError, match="is a folder"):
        read_job(tmp_path)
    with_mark = tmp_path / "bom.yaml"
    with_mark.write_bytes(b"\xef\xbb\xbfsteps: 1\r\nstep_s: 1\r\n")
    assert read_job(with_mark).steps == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=examples(400))
@given(st.dictionaries(st.sampled_from([*_KEYS, "else"]), values, max_size=6), st.booleans())
def test_whatever_a_file_says_it_is_a_job_or_an_error_that_names_the_place(
    found: dict[str, object], base: bool
) -> None:
    text = yaml.safe_dump({"steps": 5, "step_s": 2, **found} if base else found, allow_unicode=True)
    try:
        job = parse_job(text, "job.yaml")
    except DeepVMError as error:
        assert "job.yaml, " in str(error)
    else:
        assert job.steps >= 1 and 0 < job.step_s.high < math.inf


@given(st.binary(max_size=60))
def test_no_bytes_bring_anything_else_to_light(data: bytes) -> None:
    with contextlib.suppress(JobFormatError):
        parse_job(data.decode("utf-8", "replace"), "job.yaml")
