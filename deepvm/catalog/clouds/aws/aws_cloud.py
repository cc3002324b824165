"""Amazon Web Services, as the registry of clouds knows it.

What every command needs is read from the environment and the shared AWS files, without loading
boto3 (half a second) or opening a socket.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from deepvm.catalog.clouds.aws.places import is_zone_of, region_at
from deepvm.catalog.clouds.aws.quota_codes import QUOTA_NAMES, quota_family
from deepvm.catalog.signals.cloud import Check, Cloud, CloudRules, Region
from deepvm.catalog.signals.signal import ADVISOR, HISTORY, Provider
from deepvm.core.spelling import did_you_mean
from deepvm.errors import RequestError

DEFAULT_REGION = "us-east-1"

# Newer partitions have longer first words (eusc-de-east-1) or two in the middle (us-gov-west-1).
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]{2,9}){1,2}-[1-9][0-9]?")

_CREDENTIAL_VARIABLES = (
    *(
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CREDENTIAL_FILE",
    ),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
)
_ROLE_VARIABLES = (
    "AWS_ROLE_ARN",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_CREDENTIAL_KEYS = (
    # of a profile: where its credentials come from, and so whose they are
    *(
        "aws_access_key_id",
        "credential_process",
        "credential_source",
        "login_session",
        "role_arn",
        "source_profile",
    ),
    *("sso_account_id", "sso_role_name", "sso_session", "sso_start_url", "web_identity_token_file"),
)
_SYSTEM = Path("/sys")
_GUIDE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide"
_BURSTABLE = re.compile("t[0-9][a-z]*")
# Previous generation instances, by AWS's page of that name (2026).
_PREVIOUS = re.compile("a1|c[1-4]|cc2|cr1|d2|f1|g[23]|g3s|h1|hs1|i[23]|m[1-4]|p2|r[34]|t1|x1")


class AwsCloud(Cloud):
    """See :class:`Cloud`. Methods that ask AWS import what they need: most commands ask nobody."""

    name = "aws"
    title = "AWS"
    quota_names = QUOTA_NAMES
    rules = CloudRules(
        grace_s=120,
        has_cpu_vms=True,
        sources={
            "grace_s": f"{_GUIDE}/spot-instance-termination-notices.html, 2026",
            "has_cpu_vms": "https://aws.amazon.com/ec2/instance-types/, 2026",
        },
    )

    def quota_family(self, type_name: str) -> str:
        """See :meth:`Cloud.quota_family`."""
        return quota_family(type_name)

    def facts_of(self, type_name: str) -> Mapping[str, Any]:
        """See :meth:`Cloud.facts_of`."""
        family, _, size = type_name.partition(".")
        facts: dict[str, Any] = {
            "burstable": bool(_BURSTABLE.fullmatch(family)),
            "metal": size.startswith("metal"),
        }
        return facts | {"current": not _PREVIOUS.fullmatch(family)}

    def check_region(self, name: str, option: str = "region") -> str:
        """See :meth:`Cloud.check_region`; whether there is such a region only AWS can tell."""
        if _REGION.fullmatch(name):
            return name
        allowed = "an AWS region in small letters, such as us-east-1 or ap-northeast-2"
        if _REGION.fullmatch(name[:-1]) and name[-1:].isalpha():
            allowed += f"; {name} is a zone, its region is {name[:-1]}; did you mean {name[:-1]}?"
        else:
            meant = region_at(name)
            # The names of all regions are slow to load.
            meant = did_you_mean(
                name.replace("_", "-"), () if meant else sorted(self.known_regions()), meant
            )
            allowed += f"; {meant}" if meant else ""
        raise RequestError(option, name, allowed)

    def may_be_zone(self, zone: str, region: str) -> bool:
        """See :meth:`Cloud.may_be_zone`."""
        return is_zone_of(zone, region)

    def own_region(self, profile: str, environ: Mapping[str, str]) -> Region:
        """See :meth:`Cloud.own_region`. Not left to boto3, which ignores ``AWS_REGION``."""
        for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
            if environ.get(variable):
                return Region(
                    self.check_region(environ[variable], variable),
                    f"environment variable {variable}",
                )
        name = _profile_name(profile, environ)
        for file, keys in _profile(name, environ):
            found = (keys or {}).get("region", "").strip()
            if found:
                where = f"profile {name} in {file}"
                return Region(self.check_region(found, f"region of {where}"), where)
        return Region(
            DEFAULT_REGION,
            "the default: no --region, no AWS_REGION and no region in the AWS profile",
        )

    def known_regions(self) -> Collection[str]:
        """See :meth:`Cloud.known_regions`; loads botocore."""
        from deepvm.catalog.clouds.aws.client import known_regions

        return known_regions()

    def account_regions(self, profile: str) -> tuple[str, ...]:
        """See :meth:`Cloud.account_regions`."""
        from deepvm.catalog.clouds.aws.client import Aws

        return Aws(profile).regions(DEFAULT_REGION)

    def credentials_may_exist(self, profile: str, environ: Mapping[str, str]) -> bool:
        """See :meth:`Cloud.credentials_may_exist`: false only where boto3's whole search must end empty."""
        # A named profile counts even if it does not exist: the user must be told.
        if profile or any(environ.get(variable) for variable in _CREDENTIAL_VARIABLES):
            return True
        old = (
            (environ["BOTO_CONFIG"],)
            if environ.get("BOTO_CONFIG")
            else ("/etc/boto.cfg", "~/.boto")
        )
        sections = (
            *_profile("default", environ),
            *(_section(f, environ, "Credentials") for f in old),
        )
        # botocore will say what is wrong with a file that cannot be read.
        if any(
            keys is None or any(keys.get(key) for key in _CREDENTIAL_KEYS) for _, keys in sections
        ):
            return True
        return _may_have_machine_role(environ)

    def account_tag(self, profile: str, environ: Mapping[str, str]) -> str:
        """See :meth:`Cloud.account_tag`.

        A named profile beats a key in the environment, as in boto3.
        """
        key = environ.get("AWS_ACCESS_KEY_ID", "")
        if key and not profile:
            return f"key-{_digest(key)}"
        name = _profile_name(profile, environ)
        # The name alone does not do: the same profile may be given other keys tomorrow, and a role
        # is somebody else on another machine.
        identity = [name, *(f"{v}={environ[v]}" for v in _ROLE_VARIABLES if environ.get(v))]
        for _, keys in _profile(name, environ):
            found = ((key, (keys or {}).get(key, "").strip()) for key in _CREDENTIAL_KEYS)
            identity += [f"{key}={value}" for key, value in found if value]
        return f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:40]}-{_digest(' '.join(identity))}"

    def providers(self, kinds: Sequence[str], profile: str) -> Mapping[str, Provider]:
        """See :meth:`Cloud.providers`."""
        from deepvm.catalog.clouds.aws.client import Aws
        from deepvm.catalog.clouds.aws.providers import aws_providers, history_provider

        aws = Aws(profile)
        histories = (k for k in kinds if k.startswith(f"{HISTORY}:"))
        past = {k: history_provider(aws, int(k.partition(":")[2])) for k in histories}
        return {**aws_providers(aws), **self.public_providers(), **past}

    def public_providers(self) -> Mapping[str, Provider]:
        """See :meth:`Cloud.public_providers`."""
        from deepvm.catalog.clouds.aws.spot_advisor import AdvisorProvider

        return {ADVISOR: AdvisorProvider()}

    def placement_provider(self, profile: str, types: Sequence[str], count: int) -> Provider:
        """See :meth:`Cloud.placement_provider`."""
        from deepvm.catalog.clouds.aws.client import Aws
        from deepvm.catalog.clouds.aws.providers import placement_provider

        return placement_provider(Aws(profile), types, count)

    def secrets_of(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """See :meth:`Cloud.secrets_of`."""
        from deepvm.catalog.signals.redaction import secrets_of

        return secrets_of(environ)

    def policy(self) -> str:
        """See :meth:`Cloud.policy`: the JSON text of a read-only IAM policy."""
        return (self.data / "iam-policy.json").read_text(encoding="utf-8")

    def check(self, profile: str, region: str, now: datetime, total_s: float) -> tuple[Check, ...]:
        """See :meth:`Cloud.check`."""
        from deepvm.catalog.clouds.aws.checks import check_aws
        from deepvm.catalog.clouds.aws.client import Aws

        return check_aws(Aws(profile, region, total_s=total_s), region, now)


_Section = tuple[Path, Mapping[str, str] | None]
"""An ini file and the keys of a section: none where there is no such section, None where it is unreadable."""


def _profile_name(profile: str, environ: Mapping[str, str]) -> str:
    return profile or environ.get("AWS_DEFAULT_PROFILE") or environ.get("AWS_PROFILE") or "default"


def _profile(name: str, environ: Mapping[str, str]) -> tuple[_Section, _Section]:
    """A profile in the shared config and credentials files."""
    in_config = (
        ("default", "profile default")
        if name == "default"
        else (f"profile {name}", f'profile "{name}"')
    )
    return (
        _section(environ.get("AWS_CONFIG_FILE") or "~/.aws/config", environ, *in_config),
        _section(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials", environ, name),
    )


def _section(file: str, environ: Mapping[str, str], *names: str) -> _Section:
    """The first of these sections that a file has."""
    from configparser import Error, RawConfigParser

    home = environ.get("HOME")
    path = (
        Path(home, file[2:]) if home and file.startswith("~/") else Path(os.path.expanduser(file))
    )
    # AWS has no section of defaults, and its tools accept duplicate profiles.
    parser = RawConfigParser(strict=False, default_section="")
    try:
        if path.is_file():
            parser.read_string(path.read_text(encoding="utf-8"))
    except (Error, OSError, ValueError):
        return path, None
    return path, next((dict(parser.items(name)) for name in names if parser.has_section(name)), {})


def _may_have_machine_role(environ: Mapping[str, str]) -> bool:
    """Whether this is an EC2 machine, which may have a role.

    Only its metadata service could tell for certain.
    """
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    words = []
    for place in ("class/dmi/id/sys_vendor", "class/dmi/id/board_vendor", "hypervisor/uuid"):
        try:
            words.append(
                (_SYSTEM / place).read_text(encoding="ascii", errors="replace").strip().lower()
            )
        except OSError:
            words.append("")
    on_ec2 = "amazon ec2" in words[:2] or words[2].startswith("ec2")
    return on_ec2 or bool(environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"))


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]
