"""File names whose bytes are no text, in every kind of locale: shown escaped, read back as they
were, no error.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.effort import sampled
from support.places import ROOT

from deepvm.catalog.store import load_catalog
from deepvm.simulator.jobfile import job_document, preset

NAME = b"k\xe9se"  # Latin-1, which is no UTF-8
SHOWN = "k\\udce9se"
LOCALES = {
    "utf-8": {"PYTHONIOENCODING": "utf-8:strict"},  # as a terminal in any language has it
    "posix": {"LC_ALL": "POSIX"},
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog without a name of its own, a job, a trace, and something broken, all called so."""
    place = tmp_path_factory.mktemp("names")
    table = subprocess.run(
        [sys.executable, "-m", "deepvm", "catalog", "show", "paper", "-o", "csv"],
        capture_output=True,
        check=True,
    ).stdout.splitlines(keepends=True)
    at = os.fsencode(place) + b"/" + NAME
    Path(os.fsdecode(at + b".csv")).write_bytes(
        b"".join(row for row in table if not row.startswith(b"# name"))
    )
    job = yaml.safe_dump(
        {key: value for key, value in job_document(preset("gpt-117m")).items() if key != "name"}
    )
    Path(os.fsdecode(at + b".yaml")).write_text(job)
    trace = {
        "metadata": {"gap_seconds": 600},
        "data": [1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1] * 9,
    }
    Path(os.fsdecode(at + b".trace.json")).write_text(json.dumps(trace))
    Path(os.fsdecode(at + b".bad.json")).write_text('{"x": 1}')
    plan = [
        sys.executable,
        "-m",
        "deepvm",
        "recommend",
        "--pw",
        "3",
        "--catalog",
        "paper",
        "-o",
        "json",
    ]
    Path(os.fsdecode(at + b".plan.json")).write_bytes(
        subprocess.run(plan, capture_output=True, check=True).stdout
    )
    Path(os.fsdecode(at)).mkdir()
    return place


def deepvm(folder: Path, locale: str, *words: str) -> tuple[int, str, str]:
    """The command in a locale, with NAME in the place of @; both outputs must be plain text."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("LC_", "LANG", "PYTHON"))}
    given = [os.fsencode(w).replace(b"@", NAME) for w in words]
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"deepvm", *given],
        capture_output=True,
        cwd=folder,
        env=kept | LOCALES[locale] | {"PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in err and "internal error" not in err and "codec" not in err, ascii(err)
    return done.returncode, out, err


PRINTED = [
    (["recommend", "--pw", "3", "--catalog", "@.csv"], 0),
    (["recommend", "--pw", "3", "--catalog", "@.csv", "-o", "csv"], 0),
    (["recommend", "--pw", "3", "--catalog", "no@.json"], 4),
    (["recommend", "--pw", "3", "--catalog", "paper", "--job", "@.yaml", "-o", "json"], 0),
    (["recommend", "--pw", "3", "--catalog", "paper", "--quota", "@.bad.json"], 4),
    (["recommend", "--pw", "3", "--catalog", "paper", "--gpu", "@"], 2),
    (["recommend", "--pw", "@", "--catalog", "paper"], 2),
    (["recommend", "--@"], 2),
    (["@"], 2),
    (["help", "@"], 2),
    (["explain", "@", "--pw", "3", "--catalog", "@.csv"], 2),
    (["catalog", "validate", "@.csv"], 0),
    (["catalog", "validate", "@.bad.json"], 4),
    (["catalog", "diff", "@.csv", "paper"], 0),
    (["catalog", "convert", "@.csv", "@.out.csv", "--force"], 0),
    (["catalog", "convert", "@.csv", "@.out.json", "--force"], 0),
    (["sweep", "--pw", "1:3:1", "--catalog", "@.csv", "--plot", "@.png"], 0),
    (
        [
            "export",
            "@.plan.json",
            "--to",
            "terraform",
            "--image",
            "ami-0123456789abcdef0",
            "--output-dir",
            "@/new",
            "--force",
        ],
        0,
    ),
    (["export", "@.plan.json", "--to", "skypilot", "--output-dir", "@/other", "--force"], 0),
    (["export", "@.plan.json", "--to", "skypilot", "--output-dir", "@/other"], 2),
    (["export", "no@.json", "--to", "skypilot"], 4),
    (["simulate", "--job", "@.yaml", "--runs", "20"], 0),
    (["simulate", "--job", "@.yaml", "--runs", "20", "--plot", "@.svg", "-o", "json"], 0),
    (["simulate", "--job", "no@.yaml"], 4),
    (["ckpt", "ls", "@"], 0),
    (["ckpt", "ls", "no@"], 4),
    (["traces", "show", "@.trace.json", "--plot", "@.trace.png"], 0),
    (["traces", "fit", "@.trace.json"], 0),
    (["profile", "fit", "@.csv"], 4),
    (["tables", "import", "@.bad.json"], 4),
]


@pytest.mark.parametrize(
    ("locale", "every"),
    [
        ("utf-8", 7),
        ("posix", 15),
        ("ascii", 7),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in LOCALES),
    ],
)
def test_names_that_are_no_text_are_printed_escaped(folder: Path, locale: str, every: int) -> None:
    said = ""
    for words, code in PRINTED[::every]:
        got, out, err = deepvm(folder, locale, *words)
        assert got == code, (words, ascii(err))
        said += out + err
    assert SHOWN in said and "k\ufffdse" not in said


READ: dict[str, Any] = {
    "json": json.loads,
    "yaml": yaml.safe_load,
    "csv": lambda text: list(csv.reader(io.StringIO(text))),
}


@pytest.mark.parametrize("locale", sampled(LOCALES))
def test_documents_stay_documents_and_keep_the_name(folder: Path, locale: str) -> None:
    found = json.loads(deepvm(folder, locale, "traces", "show", "@.trace.json", "-o", "json")[1])
    assert os.fsencode(found["traces"][0]["trace"]) == NAME + b".trace.json"
    for form, read in READ.items():
        assert read(
            deepvm(folder, locale, "recommend", "--pw", "3", "--catalog", "@.csv", "-o", form)[1]
        )


def test_what_is_written_under_such_a_name_can_be_read(folder: Path) -> None:
    for end in ("json", "csv"):
        assert deepvm(folder, "utf-8", "catalog", "convert", "@.csv", f"@.again.{end}")[0] == 0
        again = load_catalog(
            os.fsdecode(os.fsencode(folder) + b"/" + NAME + f".again.{end}".encode())
        )
        assert again.name == SHOWN and [i.name for i in again] == [
            i.name for i in load_catalog("paper")
        ]


def test_letters_that_a_locale_lacks_are_escaped_and_stay_json(folder: Path) -> None:
    (folder / "größe😀.trace.json").write_bytes(
        (folder / os.fsdecode(NAME + b".trace.json")).read_bytes()
    )
    _, out, _ = deepvm(folder, "utf-8", "traces", "show", "größe😀.trace.json", "-o", "json")
    assert "größe😀" in out
    _, plain, _ = deepvm(folder, "ascii", "traces", "show", "größe😀.trace.json", "-o", "json")
    assert plain.isascii() and json.dumps(json.loads(plain)).encode() and json.loads(plain)
    show = ("catalog", "show", "paper.json", "-o", "json")
    assert deepvm(folder, "utf-8", "catalog", "convert", "paper", "paper.json")[0] == 0
    file = folder / "paper.json"
    named = json.loads(file.read_text(encoding="utf-8")) | {"name": "größe😀"}
    file.write_text(json.dumps(named), encoding="utf-8")
    assert json.loads(deepvm(folder, "ascii", *show)[1])["name"] == "größe😀"
