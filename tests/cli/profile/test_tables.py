"""``deepvm tables`` and ``--tables`` as people meet them: save, recommend, undo, copy back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.places import GOLDEN_FOLDER
from support.published import FIGURE_5, SIZES

import deepvm
from deepvm.catalog.measured.tables import (
    Tables,
    encode_tables,
    entry_of,
    load_tables,
    own_folder,
    save_entries,
)
from deepvm.cli.output import say
from deepvm.core.cluster.instances import Gpu
from deepvm.errors import DataError, RequestError
from deepvm.services.open_catalogs import with_figures
from deepvm.services.profile.saving import check_save, entry_from
from deepvm.services.profile.saving import save as save_measurements

GOLDEN = GOLDEN_FOLDER
WORKLOAD = {
    "model": "resnet50",
    "resolution": 224,
    "batch": 64,
    "dtype": "float32",
    "optimizer": "adam",
}
PAPER = ("--pw", "3", "--catalog", "paper")
Good = Callable[..., str]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))


@pytest.fixture
def good(run: Run) -> Good:
    """What a command prints that has to succeed."""

    def call(*words: str) -> str:
        code, out, err = run(*words)
        assert code == 0, err
        return out

    return call


def eflops(value: float = 1.2e12, **changes: Any) -> dict[str, Any]:
    return {
        "schema_version": "deepvm.eflops/1",
        "eflops": value,
        "images_per_s": 98.3,
        "spread": 0.02,
        "workload": WORKLOAD,
        "machine": {"gpus": ["Tesla T4"]},
    } | changes


def scaling(**changes: Any) -> dict[str, Any]:
    points = [
        {"n": n, "seconds": 10 / s, "speedup": s}
        for n, s in ((1, 1), (2, 1.9), (4, 3.6), (8, 7), (16, 12))
    ]
    return {
        "schema_version": "deepvm.scaling/1",
        "workload": WORKLOAD,
        "local": False,
        "points": points,
    } | changes


def save(
    document: dict[str, Any], *, force_local: bool = False, force_spread: bool = False, **types: Any
) -> None:
    entry = entry_from(document, say, **types)
    save_measurements([entry], say, force_local=force_local, force_spread=force_spread)


def saturation() -> dict[str, Any]:
    return {
        "schema_version": "deepvm.saturation/1",
        "transport": "tcp",
        "sender_type": "g4dn.xlarge",
        "receiver_type": "c5.xlarge",
        "sender_gbps": 25,
        "receiver_gbps": 10,
        "times": [{"n": n, "seconds": [1.0]} for n in range(1, 9)],
        "n_sat_raw": 7,
        "n_sat_knee": 5,
        "interval": [4, 6],
    }


def written(name: str, document: dict[str, Any]) -> str:
    Path(name).write_text(json.dumps(document))
    os.utime(name, (1767225600, 1767225600))  # 2026-01-01
    return name


def figure_5(name: str) -> str:
    rows = "".join(f"{n},{s}\n" for n, s in zip(SIZES, FIGURE_5[name], strict=True))
    Path(f"{name}.csv").write_text("n,speedup\n" + rows)
    return f"{name}.csv"


def test_figure_5_as_measured_points(good: Good) -> None:
    for name in FIGURE_5:
        words = ("--kind", "scaling", "--instance-type", name, "--workload", "resnet50")
        good("tables", "import", figure_5(name), *words)
    answer = json.loads(
        good("recommend", *PAPER, "--speedup", "measured", "--top", "100", "-o", "json")
    )
    assert [m["subject"] for m in answer["source"]["measured"]] == sorted(FIGURE_5)
    checked = 0
    for found in answer["configurations"]:
        name, count = found["gpu"]["instance_type"], found["gpu"]["count"]
        if count in SIZES:
            checked += 1
            assert found["speedup"] == pytest.approx(min(FIGURE_5[name][SIZES.index(count)], count))
    assert checked > 3
    # The catalog holds the same points, so the answer is the same cluster; now it is the default
    # too.
    published = json.loads(
        good("recommend", *PAPER, "--speedup", "measured", "--tables", "paper", "-o", "json")
    )
    own = json.loads(good("recommend", *PAPER, "-o", "json"))
    assert own["configurations"][0]["throughput"] == pytest.approx(
        published["configurations"][0]["throughput"]
    )
    assert own["configurations"][0]["speedup_kind"] == "measured"


def test_saved_and_used_at_once(capsys: pytest.CaptureFixture[str], run: Run, good: Good) -> None:
    before = good("recommend", *PAPER)
    save(eflops(), instance_type="g4dn.xlarge")
    save(scaling(), instance_type="g4dn.xlarge")
    save(saturation())
    err = capsys.readouterr().err
    assert "saved: scaling:g4dn.xlarge:resnet50/224px/b64/float32/adam, S(16) = 12 (5 sizes)" in err
    after = good("recommend", *PAPER)
    today = str(load_tables().entries[0].measured_at.date())
    assert after != before
    assert "where the measured curve of g4dn.xlarge gives S(" in after
    assert (
        f"Measured here: eFLOPS of g4dn.xlarge {today} with resnet50/224px/b64/float32/adam"
        in after
    )
    assert f"n_sat of g4dn.xlarge to c5.xlarge {today};" in after
    assert (
        f"speed-up of g4dn.xlarge {today} with resnet50/224px/b64/float32/adam. '--tables" in after
    )
    assert "Warning: g4dn.xlarge alone links" in after
    assert good("recommend", *PAPER, "--tables", "paper") == before
    document = json.loads(good("recommend", *PAPER, "-o", "json"))
    assert [m["kind"] for m in document["source"]["measured"]] == [
        "eflops",
        "scaling",
        "saturation",
    ]
    assert document["configurations"][0]["gpu"]["eflops_source"].startswith(
        f"measured here, {today} (resnet50/"
    )
    for words in (
        ("explain", "g5.xlarge", *PAPER),
        ("catalog", "show", "paper"),
        ("sweep", *PAPER),
    ):
        code, out, said = run(*words)
        assert code == 0 and "Measured here: eFLOPS of g4dn.xlarge" in out + said
        code, out, said = run(*words, "--tables", "paper")
        assert code == 0 and "easured here" not in out + said


FORMS = [("recommend", *PAPER, "-o", o) for o in ("table", "json")]
FORMS += [
    ("sweep", "--pw", "1:3:1", "--catalog", "paper"),
    ("explain", "g5.xlarge", *PAPER),
    ("catalog", "show", "paper"),
]


@pytest.mark.parametrize("words", FORMS, ids=lambda w: " ".join(w))
def test_paper_is_byte_for_byte_what_it_is_without_tables(
    words: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save(eflops(5e13), instance_type="g4dn.xlarge")
    save(scaling(), instance_type="g5.xlarge")
    paper, own = run(*words, "--tables", "paper"), run(*words)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "nothing"))
    assert run(*words) == paper != own


def test_a_catalog_with_measurements_can_be_kept(good: Good) -> None:
    """And counts the same whether the tables are applied to it once more or not."""
    save(eflops(), instance_type="g4dn.xlarge")
    save(eflops(2.9e12, machine={}), instance_type="g5.xlarge")
    save(scaling(), instance_type="g4dn.xlarge")
    Path("mine.json").write_text(good("catalog", "show", "paper", "-o", "json"))
    good("catalog", "validate", "mine.json")
    own, kept, twice = (
        json.loads(good("recommend", "--pw", "3", *words, "-o", "json"))["configurations"]
        for words in (
            ("--catalog", "paper"),
            ("--catalog", "mine.json", "--tables", "paper"),
            ("--catalog", "mine.json"),
        )
    )
    for found in (kept, twice):
        assert [(c["gpu"]["instance_type"], c["gpu"]["count"]) for c in found] == [
            (c["gpu"]["instance_type"], c["gpu"]["count"]) for c in own
        ]
        assert found[0]["throughput"] == pytest.approx(own[0]["throughput"], rel=1e-5)


def test_regions_are_brought_to_one_scale() -> None:
    """One of them lacks the type that links what was measured to the catalog's eFLOPS."""
    paper = deepvm.load_catalog("paper")
    new = replace(paper["g5.xlarge"], name="new.xlarge", gpu=Gpu("new"), eflops=None)
    linked = replace(paper, instances=(*paper, new))
    alone = replace(paper, instances=(new, paper["c5.xlarge"]))
    save(eflops(1e12), instance_type="g4dn.xlarge")
    save(eflops(2e12, machine={}), instance_type="new.xlarge")
    there, here = with_figures((linked, alone), "auto", "", print)
    assert (
        there["new.xlarge"].eflops
        == here["new.xlarge"].eflops
        == pytest.approx(2 * paper["g4dn.xlarge"].eflops)
    )


def test_tables_of_a_file(run: Run, good: Good) -> None:
    save(scaling(), instance_type="g4dn.xlarge")
    own = good("recommend", *PAPER)
    good("tables", "export", "mine.json")
    good("tables", "remove", "scaling")
    assert "Measured" not in good("recommend", *PAPER)
    named = own.replace("Measured here: ", "Measured (mine.json): ")
    assert named != own
    assert good("recommend", *PAPER, "--tables", "mine.json") == named
    document = json.loads(good("recommend", *PAPER, "--tables", "mine.json", "-o", "json"))
    assert document["source"]["measured_file"] == "mine.json"
    Path("deepvm.toml").write_text('tables = "mine.json"\n')
    assert good("recommend", *PAPER) == named
    assert "Measured" not in good("recommend", *PAPER, "--tables", "auto")
    written("curve.json", scaling())
    for words, code, error in (
        (
            ("--tables", "curve.json"),
            4,
            "schema_version: 'deepvm.scaling/1' (expected deepvm.tables/1",
        ),
        (
            ("--tables", "none.json"),
            4,
            "none.json: does not exist (expected what `deepvm tables export`",
        ),
        (("--tables", "never"), 2, "--tables: 'never' (expected auto, paper, or a .json file"),
        (("--workload", "bert"), 2, "--workload: 'bert' (expected one that was measured"),
    ):
        found = run("recommend", *PAPER, *words)
        assert found[0] == code and error in found[2]


def test_the_python_api() -> None:
    save(scaling(), instance_type="g4dn.xlarge")
    paper = deepvm.load_catalog("paper")
    tables = deepvm.load_tables()
    assert deepvm.recommend(paper, 3, tables=tables)[0].speedup_kind == "measured"
    assert deepvm.recommend(paper, 3)[0].speedup_kind == "hybrid"
    (row,) = deepvm.sweep(paper, [3], ["deepvm"], tables=tables)
    assert row.recommendation is not None and row.recommendation.speedup_kind == "measured"
    assert deepvm.explain(paper, 3, "g4dn.xlarge", tables=tables).best is not None
    with pytest.raises(RequestError, match=r"deepvm\.load_tables\(\)"):
        deepvm.recommend(paper, 3, tables="auto")  # type: ignore[arg-type]


def test_damaged_tables_stop_a_recommendation_and_say_the_way_out(
    run: Run, good: Good, tmp_path: Path
) -> None:
    save(scaling(), instance_type="g4dn.xlarge")
    save(eflops(), instance_type="g4dn.xlarge")
    file = tmp_path / "data" / "measured.json"
    file.write_text(file.read_text().replace('"speedup": 1.9', '"speedup": -1.9'))
    code, out, err = run("recommend", *PAPER)
    assert (code, out) == (4, "")
    assert "entries[1].document.points[1].speedup: -1.9 (expected speed-up over one VM" in err
    assert "'deepvm tables restore' brings back the tables before the last change" in err
    assert run("recommend", *PAPER, "--tables", "paper")[0] == 0
    good("tables", "restore")
    assert "Measured here: speed-up of g4dn.xlarge" in good("recommend", *PAPER)


def test_home_and_back(
    run: Run, good: Good, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save(eflops(), instance_type="g4dn.xlarge")
    save(saturation())
    good("tables", "export", "home.json")
    assert good("tables", "export", "-") == Path("home.json").read_text()
    assert run("tables", "export", "home.json")[0] == 2
    good("tables", "export", "home.json", "--force")
    there = load_tables().entries
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "elsewhere"))
    good("tables", "import", "home.json")
    assert load_tables().entries == there
    code, _, err = run("tables", "import", "home.json", "--instance-type", "g5.xlarge")
    assert code == 2 and "nothing with exported tables, which say so themselves" in err


def test_documents_are_imported_with_their_day(run: Run, good: Good) -> None:
    file = written("e.json", eflops())
    good("tables", "import", file, "--instance-type", "g4dn.xlarge")
    assert str(load_tables().entries[0].measured_at) == "2026-01-01 00:00:00+00:00"
    good("tables", "import", file, "--instance-type", "g4dn.xlarge", "--measured-at", "2026-02-03")
    assert str(load_tables().entries[0].measured_at.date()) == "2026-02-03"
    code, _, err = run("tables", "import", file, "--instance-type", "g4dn.xlarge")
    assert code == 0 and "is not saved: there is a later measurement, of 2026-02-03" in err
    good("tables", "import", written("n.json", saturation()))
    assert load_tables().entries[1].subject == "g4dn.xlarge to c5.xlarge"


REFUSED = {
    "local": (
        ("l.json", "--instance-type", "g4dn.xlarge"),
        2,
        "processes of one machine, which says nothing about",
    ),
    "no type": (
        ("e.json",),
        2,
        "--instance-type: not given or empty (expected the provider's name of the type",
    ),
    "a fit": (
        ("fit.json",),
        4,
        "fit.json: invalid value for schema_version: 'deepvm.fit/1' (expected deepvm.tables/1,"
        " deepvm.eflops/1",
    ),
    "a list": (("list.json",), 4, "list.json: not an object"),
    "not there": (("nowhere.json",), 4, "nowhere.json: does not exist"),
    "CSV without words": (
        ("g5.xlarge.csv",),
        2,
        "--kind scaling --instance-type TYPE --workload NAME",
    ),
    "CSV of nothing": (
        ("bad.csv", *(CSV := ("--kind", "scaling", "--instance-type", "a", "--workload", "b"))),
        4,
        "bad.csv:3: ",
    ),
    "CSV without header": (
        ("raw.csv", *CSV),
        4,
        "raw.csv:1: repeated column 1 (expected CSV with the columns n",
    ),
    "words of a CSV": (
        ("e.json", "--workload", "x"),
        2,
        "--workload: 'x' (expected with a CSV only",
    ),
    "no CSV there": (
        ("none.csv", *CSV),
        4,
        "none.csv: does not exist (expected CSV with the columns",
    ),
    "future": (
        ("e.json", "--instance-type", "a", "--measured-at", "2100-01-01"),
        2,
        "not in the future",
    ),
    "no day": (
        ("e.json", "--instance-type", "a", "--measured-at", "monday"),
        2,
        "--measured-at: 'monday'",
    ),
    "newer": (
        ("new.json", "--instance-type", "a"),
        4,
        "'deepvm.eflops/9' (expected deepvm.tables/1, deepvm.eflops/1",
    ),
}


def test_imports_that_are_refused(run: Run) -> None:
    for case in REFUSED:
        words, code, error = REFUSED[case]
        written("l.json", scaling(local=True))
        written("e.json", eflops())
        written("fit.json", {"schema_version": "deepvm.fit/1"})
        Path("list.json").write_text("[]")
        written("new.json", eflops(schema_version="deepvm.eflops/9"))
        figure_5("g5.xlarge")
        Path("bad.csv").write_text("n,speedup\n1,1\n2,fast\n")
        Path("raw.csv").write_text("1,1\n2,1.9\n")
        found = run("tables", "import", *words)
        assert (found[0], found[1]) == (code, "")
        assert error in found[2]
        assert not load_tables()


def test_a_clock_that_was_ahead_does_not_win_for_ever(
    capsys: pytest.CaptureFixture[str], run: Run, good: Good
) -> None:
    """A measurement of 2150 is refused.

    One that is there already is called what it is, and how to be rid of it.
    """
    ahead = entry_of(
        eflops(9e12),
        measured_at=datetime(2150, 1, 1, tzinfo=timezone.utc),
        instance_type="g4dn.xlarge",
    )
    Path("ahead.json").write_bytes(encode_tables(Tables((ahead,))))
    code, _, error = run("tables", "import", "ahead.json")
    assert code == 4 and "measured at 2150-01-01T00:00:00Z, and now it is" in error
    assert not load_tables()
    save_entries(own_folder(), [ahead])
    assert "g4dn.xlarge 2150-01-01 with" in good("recommend", *PAPER)
    save(eflops(), instance_type="g4dn.xlarge")
    assert (
        f"of 2150-01-01; 'deepvm tables remove {ahead.name}' makes room" in capsys.readouterr().err
    )
    good("tables", "remove", ahead.name)
    save(eflops(), instance_type="g4dn.xlarge")
    assert [e.value for e in load_tables()] == ["1.2e+12 FLOP/s (spread 2.0%)"]


def test_seconds_repeated_an_even_number_of_times_are_a_curve(good: Good) -> None:
    """S(1) is then 1 and not the median of 1.01 and 0.99."""
    Path("twice.csv").write_text("n,seconds\n1,100\n1,102\n2,60\n2,61\n4,35\n8,20\n")
    good("tables", "import", "twice.csv", *CSV)
    (entry,) = load_tables()
    assert entry.points == (
        (1, 1),
        (2, pytest.approx(101 / 60.5)),
        (4, pytest.approx(101 / 35)),
        (8, 5.05),
    )


def test_what_may_not_be_looked_at_does_not_pass_as_nothing(
    run: Run, good: Good, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A link in a circle: root, too, cannot look through it."""
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "circle"))
    code, _, error = run("recommend", *PAPER)
    assert (
        code == 4
        and "measured.json: cannot be read: " in error
        and "'--tables paper' ignores them" in error
    )
    good("recommend", *PAPER, "--tables", "paper")


def test_a_local_run_is_saved_only_by_force(good: Good) -> None:
    with pytest.raises(RequestError, match="force_local"):
        save(scaling(local=True), instance_type="g4dn.xlarge")
    save(scaling(local=True), instance_type="g4dn.xlarge", force_local=True)
    assert "was measured with processes of one machine" in good("recommend", *PAPER)


def test_what_a_profiling_command_asks_before_it_measures(tmp_path: Path) -> None:
    check_save("eflops", instance_type="g4dn.xlarge")
    assert not (tmp_path / "data" / "measured.json").exists()
    with pytest.raises(RequestError, match="instance_type"):
        check_save("scaling")
    with pytest.raises(RequestError, match="receiver_type"):
        check_save("saturation", sender_type="a")
    os.environ["DEEPVM_DATA_DIR"] = "/proc/nowhere"  # put back by the fixture
    with pytest.raises(DataError, match="DEEPVM_DATA_DIR names another folder"):
        check_save("eflops", instance_type="g4dn.xlarge")


def test_the_machine_may_know_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    save(eflops(machine={"instance_type": "g4dn.xlarge", "gpus": ["Tesla T4"]}))
    assert load_tables().entries[0].subject == "g4dn.xlarge"
    save(eflops(), instance_type="g4nd.xlarge")
    assert (
        "no catalog that comes with deepvm has a type g4nd.xlarge; did you mean g4dn.xlarge?"
        in capsys.readouterr().err
    )


SHOWN = {
    "tables-list": ("list",),
    "tables-show": ("show", "g4dn.xlarge"),
    "tables-diff": ("diff",),
    "tables-diff-paper": ("diff", "--catalog", "paper"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_golden(name: str, good: Good) -> None:
    """``WRITE_GOLDEN=1`` writes the outputs anew."""
    day = ("--measured-at", "2026-03-01")
    good("tables", "import", written("e.json", eflops()), "--instance-type", "g4dn.xlarge", *day)
    good("tables", "import", written("n.json", saturation()), *day)
    good("tables", "import", written("s.json", scaling()), "--instance-type", "g4dn.xlarge", *day)
    good("tables", "export", "t.json")
    good("tables", "remove", "g4dn.xlarge")
    earlier = written("e.json", eflops(1.5e12))
    good(
        "tables", "import", earlier, "--instance-type", "g4dn.xlarge", "--measured-at", "2026-02-01"
    )
    good("tables", "import", "t.json")
    out = good("tables", *SHOWN[name])
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        file.write_text(out)
    assert out == file.read_text()


def test_diff_for_programs(good: Good) -> None:
    assert json.loads(good("tables", "diff", "-o", "json"))["changed"] is False
    assert good("tables", "diff") == "No difference: the same measurements.\n"
    save(eflops(), instance_type="g4dn.xlarge")
    (change,) = json.loads(good("tables", "diff", "-o", "json"))["changes"]
    assert (change["change"], change["old"], change["new"]["subject"]) == (
        "added",
        None,
        "g4dn.xlarge",
    )
    rows = json.loads(good("tables", "list", "-o", "json"))["entries"]
    assert rows == [{**change["new"], "used": True, "why_not": None}]
    (entry,) = json.loads(good("tables", "show", rows[0]["name"], "-o", "json"))["entries"]
    assert entry["document"] == eflops()
    figures = json.loads(good("tables", "diff", "--catalog", "paper", "-o", "json"))["figures"]
    assert [f["figure"] for f in figures] == ["eflops_source"]


def test_names_that_mean_nothing(run: Run) -> None:
    for word in ("show", "remove"):
        code, _, err = run("tables", word, "g5.xlarge")
        assert code == 2 and "NAME: 'g5.xlarge'" in err
        assert "none, nothing was measured" in err
    assert run("tables", "restore")[0] == 4
    assert "nothing was measured yet" in run("tables", "list")[2]


@pytest.mark.parametrize("words", [["tables", "--help"], ["tables", "import", "--help"]])
def test_help_loads_nothing_slow(words: list[str]) -> None:
    run = f"try: main({words!r})\nexcept SystemExit: print('\\n', *sys.modules)"
    code = f"import sys\nfrom deepvm.cli.main import main\n{run}"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert not {"numpy", "pydantic.main", "pandas", "scipy", "torch"} & set(
        out.splitlines()[-1].split()
    )


def test_without_measurements_recommend_does_not_load_what_reads_them() -> None:
    """It is two per cent of its time."""
    run = f"try: main({['recommend', *PAPER]!r})\nexcept SystemExit: print('\\n', *sys.modules)"
    code = f"import sys\nfrom deepvm.cli.main import main\n{run}"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    loaded = {m for m in out.splitlines()[-1].split() if m.startswith("deepvm.catalog.measured.")}
    assert not loaded


def test_a_first_save_is_undone_and_a_second_one_says_what_it_replaces(
    capsys: pytest.CaptureFixture[str], run: Run, good: Good
) -> None:
    save(eflops(), instance_type="g4dn.xlarge")
    err = run("tables", "restore")[2]
    assert "measured.json: nothing measured; another restore undoes this" in err
    assert "Measured" not in good("recommend", *PAPER)
    assert "measured.json: 1 measurement; another restore" in run("tables", "restore")[2]
    save(eflops(1.3e12), instance_type="g4dn.xlarge")
    err = capsys.readouterr().err
    assert "replaced: eflops:g4dn.xlarge:resnet50/224px/b64/float32/adam, 1.3e+12" in err
    assert "before: 1.2e+12" in err


def test_an_import_that_changes_nothing_advises_no_undo(run: Run, good: Good) -> None:
    """The undo would take away what was saved before."""
    day = ("--measured-at", "2026-03-01")
    for name, value in (("g4dn.xlarge", 1.2e12), ("g5.xlarge", 3e12)):
        err = run(
            "tables", "import", written("e.json", eflops(value)), "--instance-type", name, *day
        )[2]
        assert "'deepvm tables restore' undoes this" in err
    good("tables", "export", "all.json")
    err = run("tables", "import", "all.json")[2]
    assert "measured.json: 2 measurements; nothing changed\n" in err and "restore" not in err
    Path("none.json").write_text('{"schema_version": "deepvm.tables/1", "entries": []}')
    assert run("tables", "import", "none.json")[::2] == (0, "none.json holds no measurement\n")
    own = eflops(machine={"instance_type": "p2.xlarge", "gpus": ["K80"]})
    err = run("tables", "import", written("e.json", own), "--instance-type", "g4dn.xlarge", *day)[2]
    assert "the document says that it was measured on p2.xlarge; saved as g4dn.xlarge" in err


def test_what_is_saved_and_not_used_is_said_at_once(
    capsys: pytest.CaptureFixture[str], good: Good
) -> None:
    save(eflops(device="cpu"), instance_type="g4dn.xlarge")
    err = capsys.readouterr().err
    assert "from now on" not in err
    assert (
        "eflops:g4dn.xlarge:resnet50/224px/b64/float32/adam:cpu is not used:"
        " measured on the processors of g4dn.xlarge" in err
    )
    save(scaling(), instance_type="laptop")
    assert "the catalog has no type laptop" in capsys.readouterr().err
    save(scaling(), instance_type="g4dn.xlarge")
    assert "'deepvm recommend' uses scaling:" in capsys.readouterr().err
    out = good("tables", "list")
    assert [line.split()[4] for line in out.splitlines()[1:4]] == ["no", "yes", "no"]
    assert (
        "Not used: scaling:laptop:resnet50/224px/b64/float32/adam: the catalog has no type"
        " laptop.\n" in out
    )
    rows = json.loads(good("tables", "list", "--catalog", "simulated", "-o", "json"))["entries"]
    assert [r["used"] for r in rows] == [False] * 3 and rows[1][
        "why_not"
    ] == "the catalog has no type g4dn.xlarge"


@pytest.mark.parametrize("name", ["g4dn", "g4dn.*", "*resnet50*", "scaling:g4dn.xlarge"])
def test_beginnings_and_globs_are_names(name: str, run: Run, good: Good) -> None:
    save(scaling(), instance_type="g4dn.xlarge")
    assert good("tables", "show", name).startswith("scaling:g4dn.xlarge:")
    code, _, err = run("tables", "show", "g4nd.xlarge")
    assert code == 2 and "did you mean g4dn.xlarge?" in err


def test_a_kind_that_is_no_csv(run: Run) -> None:
    code, _, err = run("tables", "import", figure_5("g5.xlarge"), "--kind", "eflops")
    assert code == 2 and "--kind: 'eflops' (expected with a CSV only" in err


def test_a_workload_that_flips_the_plan_is_doubted(good: Good) -> None:
    Path("steep.csv").write_text("n,speedup\n1,1\n2,1.98\n4,3.9\n8,7.7\n16,15\n")
    words = ("--kind", "scaling", "--instance-type", "g5.xlarge", "--workload", "efficientnet")
    good("tables", "import", "steep.csv", *words)
    out = good("recommend", *PAPER)
    assert (
        "Warning: the speed-up of g5.xlarge was measured here with efficientnet, and g3s.xlarge,"
        " g4dn.xlarge go by" in out
    )
    assert good("recommend", *PAPER, "--workload", "efficient") == out


def test_points_that_cannot_be_are_noted_at_import(run: Run) -> None:
    Path("odd.csv").write_text("n,speedup\n1,1\n2,2.8\n4,9\n8,20\n16,3\n24,40\n32,2\n")
    code, _, err = run("tables", "import", "odd.csv", *CSV)
    assert code == 0
    assert "Note: odd.csv: faster than n VMs can be at n = 2, 4, 8, 24" in err
    assert "Note: odd.csv: the nearest law, " in err
    assert "Note: g5" not in run("tables", "import", figure_5("g5.xlarge"), *CSV)[2]
