"""``deepvm lab``: trainings that fail, and proof that they resumed; and ``deepvm audit``."""

import importlib.util
import itertools
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deepvm.cli.long_runs import Progress, cleaning_up, filling
from deepvm.cli.output import Output, note, print_named, say, text
from deepvm.cli.parameters import arg, flag, group, opt
from deepvm.errors import DataError, MissingExtraError, RequestError

if TYPE_CHECKING:
    from deepvm.lab.checked import CheckedRuns


app = group(
    "Prove that training resumes correctly: inject failures, audit the results, compare strategies."
)


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("", "torch", "lab")


OUT = opt(..., "Output folder for runs and reports.", "DIR", "--out")
DIR = arg("DIR", "The folder of 'deepvm lab run --out'.")


def _make_folder(out: Path) -> None:
    from deepvm.lab.running.manifest import NAME, PLANNED

    allowed = "a folder of 'deepvm lab run', an empty one, or the name of a new one"
    try:
        out.mkdir(parents=True, exist_ok=True)
        theirs = next((path.name for path in out.iterdir() if not path.name.startswith(".")), "")
    except OSError as error:
        raise RequestError("out", str(out), f"{allowed} ({error.strerror})") from None
    if theirs and not any((out / name).exists() for name in (NAME, PLANNED)):
        raise RequestError("out", str(out), f"{allowed}; it has {theirs}")


def _refuse_incomplete(out: Path, checked: "CheckedRuns") -> None:
    if incomplete := checked.incomplete:
        run, reason = incomplete[0]
        more = ""
        if len(incomplete) > 1:
            more = f" (and {len(incomplete) - 1} more like it)"
        raise DataError(f"{out}: {run}: {reason}{more}")


@app.command(short_help="Run a matrix of trainings that fail.")
def run(
    folder: str = OUT,
    matrix: str = arg("[MATRIX.yaml]", "A file, or one of 'deepvm lab list'.", "quick"),
    only: str = opt("*", "Runs whose names match, such as 'digits-*-blk*'.", "PATTERN"),
    jobs: int = opt(1, "Runs at the same time; they share the cores.", "N", min=1, max=64),
    fresh: bool = typer.Option(
        False, "--fresh/--resume", help="Rerun everything, or only what is missing."
    ),
    output: Output = "table",
) -> None:
    """Run each training of a matrix with its failures, and audit it.

    Runs that are there and pass are kept.

    Exit 0: all runs pass; 1: some do not; 2: the matrix file or an option is wrong, or DIR cannot
    be used; 4: the disk is full, files of a data set are missing, or a run is damaged.

    Example: deepvm lab run --out lab
    """
    _need_torch()
    from deepvm.lab.matrix import find_matrix
    from deepvm.lab.matrix_runner import MatrixRunner
    from deepvm.lab.matrix_runner import Progress as Done
    from deepvm.lab.records import RUNS
    from deepvm.lab.running.manifest import NAME, PLANNED

    if not folder:  # --out "$UNSET": Path would make it the current folder
        raise RequestError("out", folder, "a folder")
    out = Path(folder)
    runner = MatrixRunner(find_matrix(matrix), out, only=only, jobs=jobs, fresh=fresh)
    _make_folder(out)
    with filling(out, "deepvm lab run"), cleaning_up():
        if fresh:
            shutil.rmtree(out / RUNS, ignore_errors=True)
            for name in (NAME, PLANNED):
                (out / name).unlink(missing_ok=True)
        with Progress(len(runner.runs), "runs") as progress:

            def report_run(done: Done) -> None:
                progress.advance(1)
                if done.row.reason and not sys.stderr.isatty():
                    say(f"{done.row.run}: {done.row.reason}")

            runner.run(report_run)
        checked = _report(out, output)
    _refuse_incomplete(out, checked)
    if checked.failures:
        note(f"'deepvm lab check {out}' lists what is wrong")
        raise typer.Exit(1)


def _report(out: Path, output: str) -> "CheckedRuns":
    from deepvm.lab.checked import check as check_runs
    from deepvm.reports.lab.files import PAGE, LabSummary, write_all

    summary = LabSummary.of(*check_runs(out))
    print_named(output, text("lab_run", also="-o csv", summary=summary), "lab-report", summary)
    missing = write_all(out, summary)  # last: a full disk hides no answer
    if missing:
        note(missing)
    note(f"full report: {out / PAGE}")
    return summary.checked


@app.command(short_help="Audit the runs of a folder.")
def check(folder: Path = DIR, output: Output = "table") -> None:
    """Check all runs of a folder against all gates. Exit 0: all hold; 1: some fail.

    4: a run is missing or damaged.

    Example: deepvm lab check lab
    """
    from deepvm.lab import checked as audit
    from deepvm.lab.audit.gates import GATES

    checked, _ = audit.check(folder, published=True)
    print_named(output, text("lab_check", checked=checked, gates=GATES), "lab", checked)
    _refuse_incomplete(folder, checked)
    if checked.failures:
        raise typer.Exit(1)


@app.command(short_help="Write tables, pictures and a page.")
def report(
    folder: Path = DIR,
    open_page: bool = flag("--open", "Open the page in a browser."),
    output: Output = "table",
) -> None:
    """Write what a folder's runs show: tables, figures, report.html.

    Example: deepvm lab report lab --open
    """
    checked = _report(folder, output)
    if open_page:
        typer.launch(str(folder / "report.html"))
    _refuse_incomplete(folder, checked)


@app.command(short_help="Run the negative controls: each must fail its gate.")
def selftest(output: Output = "table") -> None:
    """Run the negative controls: each makes one mistake, and must fail its own gate and no other.

    Exit 1 if not.

    Example: deepvm lab selftest
    """
    _need_torch()
    from deepvm.lab.audit.gates import GATES
    from deepvm.lab.selftest import CONTROLS, run_all

    with (
        cleaning_up(),
        tempfile.TemporaryDirectory(prefix="deepvm-selftest-") as folder,
        Progress(len(CONTROLS), "negative controls") as progress,
    ):
        controls = run_all(Path(folder), lambda _: progress.advance(1))
    table = text("lab_selftest", controls=controls, gates=GATES)
    print_named(output, table, "lab-selftest", controls)
    if not all(one.right for one in controls):
        raise typer.Exit(1)


@app.command("list", short_help="List datasets, models, strategies, faults.")
def list_all(output: Output = "table") -> None:
    """List what a matrix file can name.

    Example: deepvm lab list
    """
    _need_torch()
    from deepvm.lab.matrix import listing

    entries = listing()
    print_named(output, text("lab_list", also="-o csv", entries=entries), "lab-list", entries)


def audit(
    context: typer.Context,
    script: Path = arg("SCRIPT", "A training script; options of this command stand before it."),
    arguments: list[str] | None = arg(
        "[ARGS...]", "Arguments for the script; {out} becomes the run's folder.", None
    ),
    kills: int = opt(3, "Number of kills after a logged step.", "K", min=1, max=1000),
    write_kills: int = opt(
        1,
        "Number of kills in the middle of a torch.save or of safetensors' save_file.",
        "K",
        min=0,
        max=1000,
    ),
    seed: int = opt(0, "Seed for the random kill points.", "N", min=0),
    nproc: int = opt(0, "Processes to start with torchrun; 0: no torchrun.", "N", min=0, max=1024),
    resume_args: str = opt("", "Arguments to add when the script is restarted.", "WORDS"),
    final: str = opt(
        "", "File of the final parameters, compared besides what the optimizers hold.", "PATH"
    ),
    timeout: str = opt("1h", "Time limit for one start of the script.", "TIME"),
    out: Path | None = opt(
        None,
        "Keep all runs here, in a new or empty folder; default: a temporary one.",
        "DIR",
        "--out",
    ),
    output: Output = "table",
) -> None:
    """Certify that a training script resumes correctly.

    It runs twice, then is killed and restarted; results are compared bit for bit.

    The script needs no change. Exit 0: certified; 1: not; 4: the script fails without a kill,
    leaves nothing to compare, or DIR is full.

    Example: deepvm audit --kills 5 train.py --save-dir {out}
    """
    from deepvm.core.units import parse_seconds
    from deepvm.documents.build import document_of
    from deepvm.io.atomic_write import write_bytes
    from deepvm.lab.certify.attempt import Subject
    from deepvm.lab.certify.certifier import certify
    from deepvm.reports.documents import to_json
    from deepvm.services.certificates import keep_certificate

    words = list(arguments or ())
    options = {name for parameter in context.command.get_params(context) for name in parameter.opts}
    misplaced = []
    # After ``--``, and where ``{out}`` is filled in, options are meant for the script.
    for word, following in itertools.pairwise([*itertools.takewhile("--".__ne__, words), ""]):
        name, _, value = word.partition("=")
        if name in options and "{out}" not in (value or following):
            misplaced.append(name)
    if misplaced:
        note(
            f"passed to {script.name}: {', '.join(misplaced)}; options of deepvm audit come before"
            " SCRIPT (with '--' after SCRIPT, this note is left out)"
        )
    try:
        resuming = shlex.split(resume_args)
    except ValueError as error:
        raise RequestError("resume_args", resume_args, f"words as in a shell ({error})") from None
    timeout_s = parse_seconds(timeout, "timeout")
    subject = Subject(script, words[words[:1] == ["--"] :], resuming, nproc, final, timeout_s)
    with cleaning_up():
        certificate = certify(
            subject, kills=kills, write_kills=write_kills, seed=seed, out=out, report=say
        )
    print_named(output, text("certificate", certificate=certificate), "audit", certificate)
    for line in certificate.notes:
        note(line)
    if out is not None:  # last: a full disk hides no verdict
        write_bytes(out / "audit.json", to_json(document_of("audits.Audit", certificate)).encode())
    if not certificate.certified:
        raise typer.Exit(1)
    keep_certificate(script, time.time())
