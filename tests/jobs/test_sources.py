"""Jobs whose data and code come from elsewhere, whose backups go to a bucket, and who say when to
save.
"""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoint.object_store import BUCKET, CREDENTIALS, Store, running
from support.jobs.runs import SCRIPT, Home, until

pytestmark = pytest.mark.slow  # whole jobs

SECRET = "ghp-planted-secret"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    found.env["DEEPVM_DATA_DIR"] = str(tmp_path / "data" / "deepvm")
    yield found
    found.end()


@pytest.fixture
def store() -> Iterator[Store]:
    with running() as found:
        yield found


def git(folder: Path, *words: str) -> str:
    names = [
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@y",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    ]
    done = subprocess.run(
        ["git", *names, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_data_of_a_bucket_and_backups_in_one(home: Home, store: Store) -> None:
    """A machine is taken back.

    The next one fetches the data again, and the backup from the bucket.
    """
    store.client().put_object(Bucket=BUCKET, Key="train/deep/x", Body=b"seen")
    home.env |= {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": store.url}
    job = home.job(
        "bucket",
        'cp "$DEEPVM_DATA/train/deep/x" "$DEEPVM_DATA/there/own.py" "$RESULT"; exec python own.py'
        " 160 0.05;",
        data={"train": f"s3://{BUCKET}/train", "there": {"mount": str(home.code)}},
        tiers=[f"s3://{BUCKET}/run"],
        save_every_steps=40,
        # No insurance, whose versions may be those of the steps at which others are due
        save_policy="thesis",
        inject={"mttp": "1s", "count": 1, "grace": "6s", "seed": 4},
    )
    found = home.document("run", str(job))
    assert (found["state"], found["steps"], found["lost_steps"]) == ("done", 160, 0), found
    assert found["saves"]["periodic"] >= 1 and found["saves"]["emergency"] == 1
    assert (home.result / "x").read_text() == "seen" and (
        home.result / "own.py"
    ).read_text() == SCRIPT
    starts = [int(step) for step in (home.result / "starts-0").read_text().split()]
    assert len(starts) == 2 and starts[1] > 0
    saved = {int(p.name.rpartition("-")[2]) for p in home.result.glob("mine-0-*")}
    assert saved >= {40, 80, 120, 160}, "counted from the first step, on the second machine too"
    assert "1 of 1 files of s3://bucket/train" in home.run("jobs", "logs", "bucket").stdout
    names = store.keys()
    steps = {key.split("/")[3] for key in names if key.startswith("run/bucket/backups/0")}
    assert len(steps) <= 3  # two are kept; the last removal may be cut off by the end


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"train": f"s3://{BUCKET}/nothing"},
            "there is nothing at s3://bucket/nothing; correct the URL in data:",
        ),
        ({"train": "s3://nowhere/train"}, "NoSuchBucket"),
        (
            {"train": {"mount": "/no/such/place"}},
            "there is no /no/such/place on this machine; mount it",
        ),
    ],
)
def test_data_that_are_not_there_end_the_job(
    home: Home, store: Store, data: dict[str, object], said: str
) -> None:
    home.env |= {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": store.url}
    done = home.run("run", str(home.job("lacks", 'touch "$RESULT/trained";', data=data)))
    assert done.returncode == 4 and said in done.stderr and "Traceback" not in done.stderr, done
    assert not (home.result / "trained").exists()


def test_data_that_come_later(home: Home) -> None:
    """The job has failed for want of data, whoever looks.

    Where they are when it is resumed, it trains.
    """
    place = home.folder / "later"
    job = home.job("later", "exec python own.py 5 0;", data={"it": {"mount": str(place)}})
    assert home.run("run", str(job), "--detach").returncode == 0
    shown = until(
        lambda: (
            (found := home.document("jobs", "show", "later"))["exit_code"] is not None and found
        ),
        30,
    )
    assert (shown["state"], shown["exit_code"]) == (
        "failed",
        4,
    ) and f"there is no {place}" in shown["why"]
    assert home.run("jobs", "resume", "later").returncode == 4
    place.mkdir()
    found = home.document("jobs", "resume", "later")
    assert (found["state"], found["exit_code"], found["why"]) == ("done", 0, "")


def test_code_of_a_repository_and_no_secret_anywhere(home: Home) -> None:
    """The commit is settled at the start.

    A password in the URL is in no file of the job, nor in its history.
    """
    repository = home.folder / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet")
    (repository / "which").write_text("first")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "first")
    commit = git(repository, "rev-parse", "HEAD")
    url = f"https://me:{SECRET}@host.invalid/it"
    home.env |= {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{repository.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": url,
    }
    job = home.job("cloned", 'cp which "$RESULT/which";')
    job.write_text(job.read_text().replace(f"code: {home.code}", f"code: git:{url}@main"))
    assert home.document("run", str(job))["state"] == "done"
    assert (home.result / "which").read_text() == "first"
    with sqlite3.connect(_history(home)) as history:
        text = "\n".join(history.iterdump())
    assert f"git:https://host.invalid/it@{commit}" in text and SECRET not in text
    for file in (home.folder / "data").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
    wrong = home.folder / "wrong.yaml"
    wrong.write_text(
        job.read_text().replace("@main", "@none").replace("name: cloned", "name: wrong")
    )
    done = home.run("run", str(wrong))
    assert (
        done.returncode == 2
        and "wrong.yaml, line 1: code: " in done.stderr
        and "a branch, tag or commit" in done.stderr
    )
    assert SECRET not in done.stderr + done.stdout
    home.env["GIT_CONFIG_VALUE_0"] = "https://elsewhere"
    done = home.run("run", str(wrong))
    assert (
        done.returncode == 4
        and SECRET not in done.stderr + done.stdout
        and "Traceback" not in done.stderr
    ), done


def _history(home: Home) -> Path:
    (found,) = [
        p
        for p in (home.folder / "data").rglob("*")
        if p.is_file() and p.read_bytes()[:6] == b"SQLite"
    ]
    return found
