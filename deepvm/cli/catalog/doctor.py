"""``deepvm doctor``: what live prices need."""

import json
import os
import sys
import tempfile
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from deepvm.cli.catalog.refresh import CLOUD_NAMES, PROFILE, clouds_named, region_option
from deepvm.cli.output import Output, note, print_named, text, utc_now
from deepvm.cli.parameters import flag, opt
from deepvm.core.spelling import joined, refuse_unknown
from deepvm.errors import OptionMismatchError, RequestError

if TYPE_CHECKING:
    from deepvm.catalog.signals.cloud import Check, Cloud

REQUEST_TIMEOUT_S = 30  # for each request: all are small, and the user waits for the table


def doctor(
    cloud: list[str] | None = CLOUD_NAMES,
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
    failed, else 5. Of clouds other than AWS it checks whether their public catalogs answer.
    """
    from deepvm.catalog.clouds import DEFAULT_CLOUD
    from deepvm.catalog.signals.cloud import Region

    if purpose and not iam:
        raise OptionMismatchError("for", purpose, "needs --iam")
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
    clouds = clouds_named(cloud or [])
    # "all" is for prices; the usual region says the same about credentials and permissions.
    named = dict.fromkeys(r for r in region or () if r not in ("", "all"))
    if named and DEFAULT_CLOUD not in clouds:
        reason = f"needs {DEFAULT_CLOUD.title}: public catalogs have all regions"
        raise OptionMismatchError("region", joined(named), reason)
    regions = [Region(DEFAULT_CLOUD.check_region(r), "--region") for r in named]
    if DEFAULT_CLOUD in clouds and not regions:
        regions = [DEFAULT_CLOUD.own_region(profile)]
    checks = [_check_cache(), _check_local_machines()]
    now = utc_now()
    for one in clouds:
        if not one.has_api:
            checks += _public_checks(one, now)
    for own in regions:
        note(f"checking AWS in {own.name}" + ("" if named else f" ({own.where})"))
        for check in DEFAULT_CLOUD.check(profile, own.name, now, REQUEST_TIMEOUT_S):
            if len(regions) > 1:
                check = replace(check, name=f"{own.name}: {check.name}")
            checks.append(check)
    failed = any(c.ok is False for c in checks)
    values = {"ok": not failed, "regions": [r.name for r in regions], "checks": checks}
    print_named(output, text("doctor", checks=checks), "doctor", values)
    if failed:
        raise typer.Exit(5)


def _public_checks(cloud: "Cloud", now: datetime) -> "list[Check]":
    """Whether the public catalogs of a cloud answer; one that does is enough."""
    from deepvm.catalog.public.public_market import ALONE_S, AUTO, public_catalogs
    from deepvm.catalog.signals.cloud import Check

    catalogs = public_catalogs(cloud, AUTO, now)
    for catalog in catalogs:
        catalog.wait_s = ALONE_S
        catalog.latest([cloud.default_region])
    answered = any(catalog.error is None for catalog in catalogs)
    checks = []
    for catalog in catalogs:
        name = f"{cloud.title}: {catalog.source.title}"
        if (error := catalog.error) is None:
            checks.append(Check(name, True, f"{len(catalog.regions())} regions"))
        else:
            checks.append(Check(name, None if answered else False, error.detail, error.advice))
    if not catalogs:
        advice = "set none of DEEPVM_SKYPILOT_URL and DEEPVM_GPUHUNT_URL to none"
        checks = [Check(f"{cloud.title}: prices", False, "no public catalog is asked", advice)]
    return checks


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
