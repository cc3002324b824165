"""Job files: what is read, and what is refused with line, key and what is allowed."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from support.places import ROOT

from deepvm.cli.main import main
from deepvm.errors import DeepVMError, JobFormatError, RequestError
from deepvm.io.agent_board import MOST_RANKS
from deepvm.jobs.history.history import History
from deepvm.jobs.jobfile import FORMAT, JobFile, changed, job_of_plan, read_job_file, remarks
from deepvm.jobs.rented import rented_of
from deepvm.jobs.submission import check_script, submit

WHOLE = """
    name: resnet-7
    train: python train.py --epochs 90
    code: .
    setup: pip install -r requirements.txt
    env: {OMP_NUM_THREADS: 1, SEED: "7"}
    data: {train: s3://bucket/train}
    machines: {type: g4dn.xlarge, count: {min: 2, max: 4}, market: spot}
    anchor: {type: m7g.large}
    tiers: [s3://bucket/run]
    save_policy: static:40
    save_every_steps: null
    keep: 2
    budget: {usd_per_hour: 3, total_usd: 50, deadline: 12h, deadline_policy: uniform-progress}
    cloud: local
    inject: {mttp: 30s, seed: 1, count: 5, grace: 5s, missed: 0.1}
"""


def parsed(text: str) -> str:
    """The message about a bad file."""
    with pytest.raises(JobFormatError) as caught:
        FORMAT.parse(textwrap.dedent(text), "job.yaml")
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_all_keys() -> None:
    found = FORMAT.parse(textwrap.dedent(WHOLE), "job.yaml")
    assert (found.machines.count.min, found.machines.count.max) == (
        2,
        4,
    ) and found.budget.deadline == 43200
    assert found.env == {"OMP_NUM_THREADS": "1", "SEED": "7"}
    assert found.inject is not None and (found.inject.mttp, found.inject.missed) == (30, 0.1)
    assert found.data == {"train": "s3://bucket/train"}
    assert found.schema_version == "deepvm.job/1" and found.launcher == "direct"


@pytest.mark.parametrize(
    ("written", "steps"), [("1e6", 10**6), ("2.5E+3", 2500), ("1.0e+6", 10**6), ("1_000", 1000)]
)
def test_steps_with_an_exponent_which_yaml_reads_as_text(written: str, steps: int) -> None:
    text = (
        f"name: x\ntrain: t\nmachines: {{type: a}}\nsteps: {written}\nsave_every_steps: {written}\n"
    )
    found = FORMAT.parse(text, "job.yaml")
    assert found.steps == steps == found.save_every_steps and isinstance(found.steps, int)


def keys(model: type[BaseModel], above: str = "") -> set[str]:
    """All keys of a job file, with those above them."""
    found = set()
    for name, field in model.model_fields.items():
        below = [k for k in (field.annotation, *get_args(field.annotation)) if isinstance(k, type)]
        models = [k for k in below if issubclass(k, BaseModel)]
        found |= (
            {f"{above}{name}"}
            if not models
            else {k for m in models for k in keys(m, f"{above}{name}.")}
        )
    return found


def written(document: Any, above: str = "") -> set[str]:
    """The keys of a document."""
    below = document.items() if isinstance(document, dict) else ()
    return {
        k for name, value in below for k in written(value, f"{above}{name}.") or {f"{above}{name}"}
    }


def test_the_page_has_all_keys() -> None:
    """And no others, in its example or its table."""
    text = (ROOT / "docs" / "internals" / "reference" / "run-file.md").read_text(encoding="utf-8")
    example = FORMAT.parse(text.partition("```yaml\n")[2].partition("```")[0], "run-file.md")
    shown = written(example.model_dump(exclude_unset=True)) | set(
        re.findall(r"^\| `([a-z_.A-Z]+)` \|", text, re.M)
    )
    known = {re.sub(r"^(env|data)\..*", r"\1", name) for name in shown}
    assert known - {"machines.count"} == keys(JobFile)


def test_the_least() -> None:
    found = FORMAT.parse("name: x\ntrain: python t.py\nbudget: {usd_per_hour: 3}\n", "job.yaml")
    assert (
        found.machines.count is None and found.cloud == "local" and found.save_policy == "adaptive"
    )


def test_hosts_of_ones_own() -> None:
    text = (
        "name: x\ntrain: python t.py\ncloud: ssh\nmachines: {hosts: h.txt}\ninject: {mttp:"
        " 30s}\norphan_after: 5min\n"
    )
    found = FORMAT.parse(text, "job.yaml")
    assert (found.machines.hosts, found.machines.count, found.orphan_after) == ("h.txt", None, 300)


def base(**changes: str) -> str:
    keys = {"name": "x", "train": "python t.py", "machines": "{type: a}"} | changes
    return "".join(f"{key}: {value}\n" for key, value in keys.items() if value)


BAD = [
    (base(machines=""), "job.yaml: machines: expected type or plan, or budget.usd_per_hour"),
    (base(machines="{type: a, plan: b}"), "job.yaml:3: machines.plan: either type or plan"),
    (base(machines="{type: a, count: {min: 3, max: 2}}"), "machines.count.max: 2 is less than min"),
    (base(machines="{type: a, count: {min: 2}}"), "job.yaml:3: missing key machines.count.max"),
    (base(machines="{hosts: h.txt, plan: p.json}"), "machines.plan: either hosts or plan"),
    (base(machines="{type: a, python: python3}"), "machines.python: only with hosts"),
    (base(name="x" * 41), "job.yaml:1: invalid value for name: 'xxxx"),
    (base(name="-x"), "name: '-x' (expected 1 to 40 lower-case letters"),
    (base(env="{A: true}"), "job.yaml:4: invalid value for env.A (YAML reads this value as"),
    (base(env="{A: 2026-11-28}"), "reads this value as date, not as text; put it in quotes"),
    (base(env='{A: "x\\0"}'), "a NUL character, which no variable can hold"),
    (base(env="{1A: x}"), "env.1A (no name of a variable"),
    (base(env="{RANK: '3'}"), "deepvm sets RANK itself; leave it out"),
    (base(env="{DEEPVM_JOB: x}"), "sets DEEPVM_JOB itself; use the key 'name' of the job file"),
    (base(independent_processes="true", launcher="torchrun"), "only with launcher: direct"),
    (base(step_timeout="1s", inject="{mttp: 1s, grace: 10min}"), "1 s is shorter than inject.grac"),
    (base(data="{train: relative/path}"), "data.train: 'relative/path' (expected names with s3"),
    (base(data="{train: 's3://me:secret@bucket/x'}"), "invalid value for data.train"),
    (base(data="{train: {mount: /a, copy: true}}"), "data.train: an object (expected names"),
    (base(data="{../x: /a}"), "invalid value for data.../x"),
    (base(code="'git:--upload-pack=x@y'"), "code: 'git:--upload-pack=x@y' (expected a folder, or"),
    (base(save_policy="static:0"), "save_policy: 'static:0' (expected a save policy"),
    (base(budget="{deadline: 12}"), "budget.deadline: 12 (expected a time with a unit"),
    (base(cloud="azure"), "cloud: 'azure' (expected local"),
    (base(inject="{seed: 1}"), "inject.mttp: either mttp or lives"),
    (base(inject="{mttp: 30s, lives: [30s]}"), "inject.lives: either mttp or lives"),
    (base(inject="{mttp: 30s, scale: 0.1}"), "inject.scale: only with lives"),
    (base(inject="{lives: [30s, 40]}"), "invalid value for inject.lives[1]: 40 (expected a list"),
    (base(inject="{mttp: 30s, missed: 0.6, late: 0.5}"), "missed, late and silent: at most 1"),
    (base(inject="{mttp: 30s, silent: 0.5}"), "only with netns; the cloud local takes no links"),
    (base(inject="{mttp: 30s}", cloud="aws"), "local, netns and ssh; the cloud aws preempts"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_files(text: str, message: str) -> None:
    refusal = parsed(text)
    assert message in refusal and "\n" not in refusal


@pytest.mark.parametrize(
    "env",
    [
        "{HF-TOKEN: hf_SECRET}",
        "HF_TOKEN=hf_SECRET",
        "HF_TOKEN:hf_SECRET",
        "{HF TOKEN: hf_SECRET}",
        "{RANK: hf_SECRET}",
        "[HF_TOKEN=hf_SECRET]",
        "[{HF_TOKEN: hf_SECRET}]",
        "{HF_TOKEN: [hf_SECRET]}",
        "{HF_TOKEN: {hf_SECRET: 1}}",
        "{HF_TOKEN=hf_SECRET}",
        "{HF_TOKEN:hf_SECRET}",
        "{HF_TOKEN=hf_SECRET, HF_TOKEN=hf_SECRET}",
        "{HF_TOKEN: *hf_SECRET}",
        "{HF_TOKEN: !hf_SECRET x}",
        "{HF_TOKEN: !hf_SECRET!x y}",
        "{HF_TOKEN: &hf_SECRET 1, A: &hf_SECRET x, 1A: x}",
        '{HF_TOKEN: "hf_SECRET\\0"}',
        '{HF_TOKEN: "hf_SECRET\\q"}',
        "{HF_TOKEN: hf_SECRET",
        "{HF_TOKEN: 'hf_SECRET' hf_SECRET}",
        "{HF_TOKEN: hf_SECRET: x}",
        "{HF_TOKEN: !!int hf_SECRET}",
        "{HF_TOKEN: !!float hf_SECRET}",
        "{HF_TOKEN: !!binary hf_SECRET}",
        "{HF_TOKEN: !!timestamp hf_SECRET}",
        "{HF_TOKEN: !!bool hf_SECRET}",
        "{HF_TOKEN: !!omap hf_SECRET}",
        "{HF_TOKEN: !!map hf_SECRET}",
    ],
)
def test_no_message_shows_a_value_of_env(env: str) -> None:
    assert "secret" not in parsed(base(env=env)).lower()


def test_a_variable_without_a_value_is_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(base(env="\n  HF_TOKEN:\n  EMPTY: ''"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(JobFormatError, match=r"job.yaml:\d: no value for env.HF_TOKEN: .* not set"):
        read_job_file(file)
    monkeypatch.setenv("HF_TOKEN", "hf_SECRET")
    assert read_job_file(file).env == {"HF_TOKEN": "hf_SECRET", "EMPTY": ""}


def test_data_that_are_there_already() -> None:
    found = FORMAT.parse(
        base(data="{train: {mount: /mnt/data}, test: 'file:///a%20b', more: /c}"), "job.yaml"
    )
    assert found.data == {"train": {"mount": "/mnt/data"}, "test": "file:///a%20b", "more": "/c"}
    assert found.model_dump(mode="json")["data"] == found.data


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(base(code="none"))
    with pytest.raises(JobFormatError, match="job.yaml:4: invalid value for code: there is no fol"):
        read_job_file(file)
    (tmp_path / "none").mkdir()
    assert read_job_file(file).code == "none"


@given(text=st.text(max_size=200) | st.text(alphabet="abn:{}[],-& *!'\"\n 1", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        FORMAT.parse(text, "job.yaml")
    except DeepVMError as error:
        assert str(error).startswith("job.yaml:")


@given(
    changes=st.dictionaries(
        st.sampled_from(
            [
                "name",
                "train",
                "env",
                "machines",
                "budget",
                "tiers",
                "keep",
                "inject",
                "anchor",
                "data",
            ]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.text(max_size=5), inner, max_size=2)
            ),
            max_leaves=4,
        ),
    )
)
def test_any_values_are_read_or_refused(changes: dict[str, object]) -> None:
    import yaml

    text = yaml.safe_dump({"name": "x", "train": "t", "machines": {"type": "a"}} | changes)
    try:
        FORMAT.parse(text, "job.yaml")
    except DeepVMError as error:
        assert str(error).startswith("job.yaml:")


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("train: python train.py\n", "train", "they get none without 'code'"),
        ("train: python 'train.py\n", "train", "No closing quotation"),
        (
            "train: python3.12 -u trian.py --x 1\ncode: code\n",
            "train",
            "there is no trian.py in it",
        ),
        (
            "train: python train.py\ncode: code\nmachines: {plan: plan.json}\n",
            "machines.plan",
            "plan.json",
        ),
    ],
)
def test_what_no_machine_would_find_is_seen_before_one_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, key: str, said: str
) -> None:
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: x\n" + text + ("" if "machines" in text else "machines: {type: g4dn.xlarge}\n")
    )
    with History.open() as history, pytest.raises(JobFormatError) as refused:
        submit(read_job_file(job), job, history)
    assert (
        f"{key}: " in str(refused.value)
        and said in str(refused.value)
        and "job.yaml" in str(refused.value)
    )


@pytest.mark.parametrize(
    "train",
    [
        "python -m train",
        "python $SCRIPT",
        "cd sub && python train.py",
        "python -c pass",
        "./run.sh",
        "python /x.py",
    ],
)
def test_what_only_a_machine_knows_is_left_to_it(train: str, tmp_path: Path) -> None:
    check_script(
        FORMAT.parse(f"name: x\ntrain: {train}\nmachines: {{type: g4dn.xlarge}}\n", "job.yaml"),
        tmp_path,
    )


@pytest.mark.parametrize(
    ("cloud", "more", "refused"),
    [("aws", "", True), ("local", "", False), ("aws", "setup: make\n", False)],
)
def test_a_path_of_this_computer_is_none_of_a_cloud(
    cloud: str, more: str, refused: bool, tmp_path: Path
) -> None:
    """An image of the cloud may have a script that this computer lacks."""
    script = tmp_path / "train.py"
    text = f"name: x\ncode: .\ncloud: {cloud}\ntrain: python {script}\n{more}"
    job = FORMAT.parse(f"{text}machines: {{type: g4dn.xlarge}}\n", "job.yaml")
    check_script(job, tmp_path)
    script.touch()
    if not refused:
        check_script(job, tmp_path)
        return
    with pytest.raises(RequestError, match="machines get .* and nothing else of this computer"):
        check_script(job, tmp_path)


def test_a_path_of_own_hosts_is_remarked() -> None:
    text = "name: x\ncode: .\ncloud: ssh\ntrain: python -u /a/train.py 9\n"
    job = FORMAT.parse(f"{text}machines: {{hosts: h}}\n", "job.yaml")
    assert [line.partition(": ")[2] for line in remarks(job)] == [
        "/a/train.py has to be on each of them already"
    ]


def test_a_budget_alone_buys_what_recommend_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["recommend", "--pw", "3", "-o", "json"])
    best = json.loads(capsys.readouterr().out)["configurations"][0]
    found = rented_of(
        FORMAT.parse("name: x\ntrain: ./t\nbudget: {usd_per_hour: 3}\n", "job.yaml"), tmp_path
    )
    assert found.type in json.dumps(best)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m train --epochs 9", "train"),
        ("torchrun --nproc-per-node 4 -m my_lab.nets.Res_Net config.py", "res-net"),
        ("python nets/own.py -m 5", "own"),
        ("./run -m", "run"),
        ("python -m 7", "7"),
        ("accelerate launch", "accelerate"),
    ],
)
def test_a_command_names_its_job(command: str, name: str) -> None:
    assert job_of_plan(Path("plan.json"), command.split()).name == name


@pytest.mark.parametrize(
    ("more", "is_named"), [("", True), (", count: 3", False), (", grace: 0.5s", False)]
)
def test_lives_shorter_than_what_follows_a_notice_are_named(more: str, is_named: bool) -> None:
    """Each machine is paid for far longer than it trains."""
    grace = "" if "grace" in more else ", grace: 10min"
    job = FORMAT.parse(base(inject="{mttp: 1s" + grace + more + "}"), "job.yaml")
    pair = (
        "machines train for 1 s on average (inject.mttp or lives), then last 10 min more"
        " (inject.grace)"
    )
    assert list(remarks(job)) == [pair] * is_named


def test_processes_by_the_command_line() -> None:
    job = FORMAT.parse(base(launcher="torchrun"), "job.yaml")
    assert job.processes_per_machine == "gpus" and not job.independent_processes
    assert changed(job, processes_per_machine="3").processes_per_machine == 3
    for value in ("0", "201", "all", "-1", "1.5"):
        with pytest.raises(RequestError) as refused:
            changed(job, processes_per_machine=value)
        assert str(refused.value) == (
            f"invalid value for processes_per_machine: '{value}' (expected gpus, or a whole"
            " number from 1 to 200)"
        )
    with pytest.raises(RequestError, match="only with launcher: direct"):
        changed(job, independent_processes=True)


def test_as_many_processes_as_the_agent_can_tell_apart() -> None:
    from deepvm.documents.declared import properties

    _, count = properties("run_file.JobFile")["processes_per_machine"]["anyOf"]
    assert count["maximum"] == MOST_RANKS


@pytest.mark.parametrize("words", [["run"], ["run", "--dry-run"]])
def test_a_simulation_file_is_named_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    file = tmp_path / "sim.yaml"
    file.write_text("name: one\nsteps: 1000\nstep_s: 0.5\n")
    with pytest.raises(SystemExit) as end:
        main([*words, str(file)])
    assert end.value.code == 2
    said = "sim.yaml:3: this is a simulation file of 'deepvm simulate --job' (expected a job file"
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_job_file_is_no_simulation_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: one\ntrain: python train.py\nmachines: {type: g4dn.xlarge}\n")
    for words in (["simulate"], ["recommend", "3", "--offline"]):
        with pytest.raises(SystemExit) as end:
            main([*words, "--job", str(file)])
        err = " ".join(capsys.readouterr().err.split())
        assert end.value.code == 2
        assert "job.yaml:2: this is a job file of 'deepvm run' (expected a simulation file" in err
