"""``deepvm doctor``: what live prices need."""

import json
import os
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import typer

from deepvm.cli.catalog.refresh import PROFILE, region_option
from deepvm.cli.output import Output, note, print_named, text
from deepvm.cli.parameters import flag, opt
from deepvm.core.spelling import refuse_unknown
from deepvm.errors import RequestError

if TYPE_CHECKING:
    from deepvm.catalog.signals.cloud import Check

REQUEST_TIMEOUT_S = 30  # for each request: all are small, and the user waits for the table


def doctor(
    region: list[str] | None = region_option([]),
    profile: str = PROFILE,
    iam: bool = flag("--iam", "Only print the read-only IAM policy that deepvm needs."),
    purpose: str = opt(
        "",
        "With --iam: the policy of run (who runs jobs on AWS), head or machine (roles).",
        "NAME",
        "--for",
    ),
    output: Output = "table",
) -> None:
    """Check what live prices need.

    Checks the cache, credentials, the clock, each permission, quotas and the price feed. Every
    check is a small read-only request; nothing is started or changed. Exit code 0 when nothing
    failed, else 5.
    """
    from deepvm.catalog.clouds import DEFAULT_CLOUD
    from deepvm.catalog.signals.cloud import Region

    if purpose and not iam:
        raise RequestError("for", purpose, "only with --iam")
    if purpose:
        from deepvm.jobs.clouds.aws.ec2_settings import POLICIES, Ec2Settings, policy

        refuse_unknown("for", purpose, POLICIES)
        settings = Ec2Settings.of()
        if not settings.bucket:
            allowed = "the bucket that the policy is for, as a policy for any bucket is too much"
            raise RequestError("DEEPVM_AWS_BUCKET", None, allowed)
        sys.stdout.write(json.dumps(policy(purpose, settings), indent=2) + "\n")
        return
    if iam:
        sys.stdout.write(DEFAULT_CLOUD.policy())
        return
    # "all" is for prices; the usual region says the same about credentials and permissions.
    named = dict.fromkeys(r for r in region or () if r not in ("", "all"))
    regions = [Region(DEFAULT_CLOUD.check_region(r), "--region") for r in named]
    regions = regions or [DEFAULT_CLOUD.own_region(profile)]
    checks = [_check_cache(), _check_local_machines()]
    for own in regions:
        note(f"checking AWS in {own.name}" + ("" if named else f" ({own.where})"))
        now = datetime.now(timezone.utc)
        for check in DEFAULT_CLOUD.check(profile, own.name, now, REQUEST_TIMEOUT_S):
            if len(regions) > 1:
                check = replace(check, name=f"{own.name}: {check.name}")
            checks.append(check)
    failed = any(c.ok is False for c in checks)
    values = {"ok": not failed, "regions": [r.name for r in regions], "checks": checks}
    print_named(output, text("doctor", checks=checks), "doctor", values)
    if failed:
        raise typer.Exit(5)


def _check_cache() -> "Check":
    from deepvm.catalog.signals.cache import default_folder
    from deepvm.catalog.signals.cloud import Check

    folder = default_folder()
    advice = "name a writable folder with DEEPVM_CACHE_DIR; without it every run asks AWS again"
    if folder is None:
        return Check("cache", None, "there is no home folder to keep it in", advice)
    parent = next((p for p in (folder, *folder.parents) if os.path.lexists(p)), folder)
    try:
        # Only a real file shows a full disk or a read-only file system; os.access() does not.
        with tempfile.TemporaryFile(dir=parent) as stream:
            stream.write(b"deepvm")
    except OSError as error:
        reason = error.strerror or error
        return Check("cache", None, f"{folder} cannot be written: {reason}", advice)
    return Check("cache", True, str(folder) if folder.exists() else f"{folder}, not made yet")


def _check_local_machines() -> "Check":
    from deepvm.catalog.signals.cloud import Check
    from deepvm.jobs.clouds.local import unshared

    if unshared():
        return Check("local machines", True, "each has its own PID namespace (unshare)")
    detail = "unshare is refused here: a process of deepvm's own keeps machines together"
    advice = "nothing, unless you kill -9 that process and its child at once"
    return Check("local machines", None, detail, advice)
