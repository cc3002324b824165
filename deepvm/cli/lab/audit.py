"""``deepvm audit``: does a training script resume correctly when it is killed?"""

from __future__ import annotations

from pathlib import Path

import typer

from deepvm.cli.output import Output, note, print_named, say, text
from deepvm.cli.parameters import arg, opt


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
    import itertools
    import shlex

    from deepvm.cli.long_runs import cleaning_up
    from deepvm.core.units import parse_seconds
    from deepvm.documents.build import document_of
    from deepvm.errors import RequestError
    from deepvm.io.atomic_write import write_bytes
    from deepvm.lab.certify.certifier import certify
    from deepvm.lab.certify.subject import Subject
    from deepvm.reports.documents import to_json

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
