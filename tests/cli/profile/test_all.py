"""``deepvm profile all``: what is kept, what is refused, what fails, how it ends.

And spreads that are not saved.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.places import ROOT
from support.processes import marked, until
from support.profiling.measurements import eflops_document, saturation_document, scaling_document  # noqa: E402
from support.profiling.namespaces import namespaces, why_not  # noqa: E402

from deepvm.cli.long_runs import filling  # noqa: E402
from deepvm.services.profile.campaign import Campaign, Folder
from deepvm.services.profile.options import CampaignOptions  # noqa: E402

MOMENT = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
HOSTS = tuple(f"h{i}" for i in range(1, 9))
WORDS = ("--hosts", ",".join(HOSTS), "--receiver", "mem", "--instance-type", "g4dn.xlarge")
WORDS += ("--receiver-type", "c5.xlarge", "--launcher", "false {host}", "--out", "here")
SHORT = (
    "--model",
    "resnet18",
    "--batch",
    "2",
    "--windows",
    "3",
    "--seconds",
    "0.01",
    "--steps",
    "1",
    "--warmup",
    "0",
)
SHORT += ("--repeats", "1", "--device", "cpu", "--checkpoint-size", "2MB")
COMMAND = (sys.executable, "-m", "deepvm.cli.main", "profile", "all")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "data"))


def documents() -> dict[str, dict[str, Any]]:
    """What commands on eight g4dn.xlarge could have found."""
    points = ((1, 1.0), (2, 1.9), (4, 3.5), (8, 6.1))
    runs = [{"n": n, "repeat": r, "failed": None} for n, _ in points for r in (1, 2, 3)]
    machine = {"machine": {"gpus": ["Tesla T4"]}, "device": "cuda"}
    return {
        "eflops-resnet50": eflops_document(1.3e12, **machine),
        "scaling-resnet50": scaling_document(points, runs=runs, fit=None, warnings=["no fit"]),
        "saturation": saturation_document(5, sender_type="g4dn.xlarge", receiver_type="c5.xlarge"),
    }


def keep(*titles: str) -> None:
    """Make the folder ``here`` as a run with WORDS leaves it that has measured these parts."""
    options = CampaignOptions(
        hosts=",".join(HOSTS),
        launcher="false {host}",
        receiver="mem",
        instance_type="g4dn.xlarge",
        receiver_type="c5.xlarge",
    )
    Path("here").mkdir()
    folder = Folder(Path("here"))
    for part, _ in Campaign(options, None, print)._parts:
        if part.title in titles:
            folder.keep(part)
            folder.keep(part, documents()[part.title], MOMENT)


def test_what_is_kept_is_printed_imported_and_recommended_with(run: Run) -> None:
    keep(*documents())
    before = {p.name: p.read_bytes() for p in Path("here").iterdir()}
    # Through its launcher nothing could be measured
    code, out, err = run("profile", "all", *WORDS, "-o", "json")
    assert code == 0, err
    assert err.count("measured before, see here/") == 3
    tables = json.loads(out)
    assert tables["schema_version"] == "deepvm.tables/1"
    assert {e["measured_at"] for e in tables["entries"]} == {"2026-03-01T12:00:00Z"}
    assert {p.name: p.read_bytes() for p in Path("here").iterdir()} == before
    Path("home.json").write_text(out)
    assert run("tables", "import", "home.json")[0] == 0
    answer = json.loads(run("recommend", "--pw", "3", "--catalog", "paper", "-o", "json")[1])
    assert sorted(m["kind"] for m in answer["source"]["measured"]) == [
        "eflops",
        "saturation",
        "scaling",
    ]


def test_saved_it_is_used_at_once(run: Run) -> None:
    keep(*documents())
    code, _, err = run("profile", "all", *WORDS, "--save")
    assert code == 0 and err.count("saved: ") == 3, err
    answer = json.loads(run("recommend", "--pw", "3", "--catalog", "paper", "-o", "json")[1])
    assert sorted(m["kind"] for m in answer["source"]["measured"]) == [
        "eflops",
        "saturation",
        "scaling",
    ]


@pytest.mark.parametrize(
    ("words", "file", "what"),
    [
        (["--batch", "64"], "eflops-resnet50.json", "batch 128 there, 64 now"),
        (
            ["--instance-type", "g5.xlarge"],
            "eflops-resnet50.json",
            "instance_type 'g4dn.xlarge' there, 'g5.xlarge'",
        ),
        (["--launcher", "local"], "eflops-resnet50.json", "local False there, True now"),
        (["--sizes", "1,2"], "scaling-resnet50.json", "sizes [1, 2, 4, 8] there, [1, 2] now"),
        (
            ["--checkpoint-size", "1GB"],
            "saturation.json",
            "checkpoint_bytes 300000000 there, 1000000000 now",
        ),
    ],
)
def test_what_was_measured_otherwise_is_not_reused(
    run: Run, words: list[str], file: str, what: str
) -> None:
    keep(*documents())
    code, out, err = run("profile", "all", *WORDS, *words)
    assert (code, out) == (2, "")
    assert f"({file}: {what}" in err


@pytest.mark.system
def test_other_hosts_may_go_on_and_a_file_without_a_record_is_refused(run: Run) -> None:
    keep(*documents())
    assert run("profile", "all", *WORDS, "--hosts", ",".join(["new", *HOSTS[1:]]))[0] == 0
    (Path("here") / "settings.json").unlink()
    code, out, err = run("profile", "all", *WORDS)
    assert (code, out) == (2, "") and "model None there" in err
    (Path("here") / "settings.json").write_text("{")
    code, out, err = run("profile", "all", *WORDS)
    assert (code, out) == (4, "") and "here/settings.json: not JSON" in err


def test_two_at_once_do_not_share_a_folder(run: Run) -> None:
    keep(*documents())
    with filling(Path("here"), "profile all"):
        code, out, err = run("profile", "all", *WORDS)
        assert (code, out) == (2, "") and "--out: 'here'" in err and "no other 'profile all'" in err
    assert run("profile", "all", *WORDS)[0] == 0


@pytest.mark.system
def test_what_fails_is_said_and_the_rest_is_kept(run: Run) -> None:
    keep("eflops-resnet50")
    code, out, err = run("profile", "all", *WORDS, "-o", "json", "--save")
    assert code == 1
    assert [e["kind"] for e in json.loads(out)["entries"]] == ["eflops"]
    assert "Note: scaling-resnet50 is missing: no host can be used" in err
    assert "Note: saturation is missing: " in err
    assert "saved: eflops:g4dn.xlarge" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--windows", "2"], "--windows: 2"),
        (["--batch", "1"], "--batch: 1"),
        (["--seconds", "0"], "--seconds: 0.0"),
        (["--sizes", "1,9"], "--sizes: '1,9'"),
        (["--repeats", "0"], "--repeats: 0"),
        (["--checkpoint-size", "300"], "--checkpoint-size: '300'"),
        (["--receiver", "h1"], "each host once, and not the receiver"),
        (["--receiver-type", ""], "--receiver-type"),
        (["--instance-type", ""], "--instance-type"),
        (["--model", "vgg"], "--model: 'vgg'"),
        (["--out", "no/here"], "--out: 'no/here'"),
    ],
)
def test_wrong_usage_is_found_before_anything_is_measured(
    run: Run, words: list[str], message: str
) -> None:
    code, out, err = run("profile", "all", *WORDS, *words)
    assert (code, out) == (2, "") and message in err
    assert "resnet50:" not in err


def test_a_useless_spread_is_not_saved(run: Run) -> None:
    keep(*documents())
    file = Path("here") / "eflops-resnet50.json"
    file.write_text(json.dumps(documents()["eflops-resnet50"] | {"spread": 0.51}))
    code, out, err = run("profile", "all", *WORDS, "--save", "-o", "json")
    assert code == 1 and err.count("\nsaved: ") == 2, err
    assert (
        "is not saved: its windows differ by 51%" in err and "--force-spread saves it anyway" in err
    )
    Path("home.json").write_text(out)
    code, _, err = run("tables", "import", "home.json")
    assert code == 1 and "Error: eflops:g4dn.xlarge" in err and "\nsaved: " in err
    assert "eflops" not in run("tables", "list")[1]
    assert run("tables", "import", "home.json", "--force-spread")[0] == 0
    assert "(spread 51.0%)" in run("tables", "list")[1]


def test_a_spread_of_half_is_saved(run: Run) -> None:
    Path("e.json").write_text(json.dumps(eflops_document(spread=0.5)))
    assert run("tables", "import", "e.json", "--instance-type", "g4dn.xlarge")[0] == 0


def environment(folder: Path) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    own = {
        "TMPDIR": str(folder / "tmp"),
        "DEEPVM_DATA_DIR": str(folder / "data"),
        "MARK_OF_TEST": str(folder),
    }
    return {**os.environ, "PYTHONPATH": str(ROOT), **own}


def none_left(folder: Path) -> None:
    mark = f"MARK_OF_TEST={folder}"
    assert until(lambda: not marked(mark), 20), marked(mark)
    # torch's cache is torch's own.
    assert [
        p.name for p in (folder / "tmp").iterdir() if not p.name.startswith("torchinductor")
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "until", "code", "kinds"),
    [
        (signal.SIGINT, "resnet18: first steps", 130, []),
        (signal.SIGTERM, "looking at 2 hosts", 143, ["eflops"]),
    ],
)
def test_ended_in_the_middle_it_prints_what_it_has_and_goes_on(
    one_core: None, tmp_path: Path, number: int, until: str, code: int, kinds: list[str]
) -> None:
    pytest.importorskip("torch")
    words = [*COMMAND, "--hosts", "a,b", "--receiver", "m", "--instance-type", "g4dn.xlarge"]
    words += [
        "--receiver-type",
        "c5.xlarge",
        "--launcher",
        "local",
        *SHORT,
        "--out",
        "here",
        "-o",
        "json",
    ]
    settings: dict[str, Any] = {"cwd": tmp_path, "env": environment(tmp_path), "text": True}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, **settings) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(until):
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code and "Traceback" not in err
    assert [e["kind"] for e in json.loads(out)["entries"]] == kinds
    none_left(tmp_path)
    done = subprocess.run(words, capture_output=True, timeout=300, **settings)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("measured before") == len(kinds)
    entries = {e["kind"]: e for e in json.loads(done.stdout)["entries"]}
    assert sorted(entries) == ["eflops", "saturation", "scaling"]
    assert entries["scaling"]["document"]["local"] and entries["saturation"]["document"]["local"]
    none_left(tmp_path)


@pytest.mark.slow
def test_network_namespaces_as_hosts(one_core: None, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if reason := why_not():
        pytest.skip(reason)
    settings: dict[str, Any] = {
        "cwd": tmp_path,
        "env": environment(tmp_path),
        "text": True,
        "timeout": 400,
    }
    with namespaces(4) as hosts:
        words = [
            *COMMAND,
            "--hosts",
            ",".join(h.name for h in hosts[:3]),
            "--receiver",
            hosts[3].name,
        ]
        words += [
            "--instance-type",
            "g4dn.xlarge",
            "--receiver-type",
            "c5.xlarge",
            "--launcher",
            "netns",
            *SHORT,
        ]
        hosts[2].cut()  # one that is lost
        lost = subprocess.run(
            [*words, "--out", "here", "-o", "json"], capture_output=True, **settings
        )
        assert lost.returncode == 1, lost.stderr
        assert "no time for n = 3" in lost.stderr
        assert [e["kind"] for e in json.loads(lost.stdout)["entries"]][-1] == "scaling"
        subprocess.run(
            ["ip", "-n", hosts[2].name, "link", "set", "eth0", "up"], check=True, timeout=10
        )
        done = subprocess.run(
            [*words, "--out", "here", "-o", "json"], capture_output=True, **settings
        )
        assert done.returncode == 0, done.stderr
    assert "goes on after 2 finished runs" in done.stderr
    assert [e["kind"] for e in json.loads(done.stdout)["entries"]] == [
        "eflops",
        "saturation",
        "scaling",
    ]
    none_left(tmp_path)
