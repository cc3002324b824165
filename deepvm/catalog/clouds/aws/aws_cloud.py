"""Amazon Web Services: what every command needs, without boto3 (half a second) or a socket."""

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from deepvm.catalog.clouds.aws.quota_codes import QUOTA_NAMES, quota_family
from deepvm.catalog.signals.cloud import Check, Cloud, CloudRules, Region
from deepvm.catalog.signals.signal import ADVISOR, HISTORY, Provider
from deepvm.core.json_types import JsonDict, JsonObject

# Variables that select an identity. Boto3's own search takes half a second.
_IDENTITY = re.compile("AWS_(ROLE_ARN|WEB_IDENTITY_.*|CONTAINER_.*|EC2_METADATA_SERVICE_ENDPOINT)")
_CREDENTIAL_VARIABLE = re.compile(
    f"{_IDENTITY.pattern}|AWS_(ACCESS_KEY_ID|(DEFAULT_)?PROFILE|CREDENTIAL_FILE)|BOTO_CONFIG"
)
_CREDENTIAL_KEY = re.compile(
    r"^\s*(aws_access_key_id|credential_process|credential_source|login_session|role_arn"
    r"|source_profile|sso_\w+|web_identity_token_file)\s*=\s*\S",
    re.MULTILINE,
)
_SYSTEM = Path("/sys")
_GUIDE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide"
_BURSTABLE = re.compile("t[0-9][a-z]*")
# Previous generation instances, by AWS's page of that name (2026).
_PREVIOUS = re.compile("a1|c[1-4]|cc2|cr1|d2|f1|g[23]|g3s|h1|hs1|i[23]|m[1-4]|p2|r[34]|t1|x1")
_IN_SHORT = re.compile("north|south|east|west|central|gov")


class AwsCloud(Cloud):
    """See :class:`Cloud`. Methods that ask AWS import what they need: most commands do not ask."""

    def __init__(self) -> None:
        super().__init__(
            name="aws",
            title="AWS",
            rules=CloudRules(
                grace_s=120,
                has_cpu_vms=True,
                sources={
                    "grace_s": f"{_GUIDE}/spot-instance-termination-notices.html, 2026",
                    "has_cpu_vms": "https://aws.amazon.com/ec2/instance-types/, 2026",
                },
            ),
            # Newer partitions have longer first words (eusc-de-east-1) or two in the middle
            # (us-gov-west-1).
            region_form=r"[a-z]{2,4}(-[a-z]{2,9}){1,2}-[1-9][0-9]?",
            default_region="us-east-1",
            has_api=True,
            quota_names=QUOTA_NAMES,
            quota_family=quota_family,
            region_variables=("AWS_REGION", "AWS_DEFAULT_REGION"),
        )

    def may_be_zone(self, zone: str, region: str) -> bool:
        # Names such as us-east-1a, ids such as use1-az4
        short = _IN_SHORT.sub(lambda word: word[0][0], region).replace("-", "")
        starts = (region, short)
        return any(re.fullmatch(f"{re.escape(start)}-?[a-z].*", zone) for start in starts)

    def facts_of(self, type_name: str) -> JsonObject:
        family, _, size = type_name.partition(".")
        facts: JsonDict = {
            "burstable": bool(_BURSTABLE.fullmatch(family)),
            "metal": size.startswith("metal"),
        }
        return facts | {"current": not _PREVIOUS.fullmatch(family)}

    def own_region(self, profile: str) -> Region:
        """Not left to boto3, which ignores ``AWS_REGION``."""
        own = super().own_region(profile)
        if any(map(os.environ.get, self.region_variables)):
            return own
        name = _profile_name(profile)
        for file in _files():
            if region := _region_of(name, file):
                where = f"profile {name} in {file}"
                return Region(self.check_region(region, f"region of {where}"), where)
        return own

    def known_regions(self) -> Collection[str]:
        """Loads botocore."""
        from deepvm.catalog.clouds.aws.client import known_regions

        return known_regions()

    def account_regions(self, profile: str) -> tuple[str, ...]:
        from deepvm.catalog.clouds.aws.client import Aws

        return Aws(profile).regions(self.default_region)

    def credentials_may_exist(self, profile: str) -> bool:
        """Whether boto3's own search, which takes half a second, is worth it."""
        if profile or any(v and _CREDENTIAL_VARIABLE.fullmatch(k) for k, v in os.environ.items()):
            return True
        if any(_CREDENTIAL_KEY.search(_text(path)) for path in _files()):
            return True
        if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            return False
        # A machine on EC2 may have a role: only its metadata service knows. The last file is for
        # older machines, on Xen.
        files = ("class/dmi/id/sys_vendor", "class/dmi/id/board_vendor", "hypervisor/uuid")
        return any(re.match("(amazon )?ec2", _text(_SYSTEM / file).lower()) for file in files)

    def account_tag(self, profile: str) -> str:
        # With a hash: a profile's keys may change, and a role is another identity elsewhere
        name = _profile_name(profile)
        identity = [f"{k}={v}" for k, v in sorted(os.environ.items()) if _IDENTITY.fullmatch(k)]
        identity += [_text(path) for path in _files()]
        key = os.environ.get("AWS_ACCESS_KEY_ID", "")
        if key and not profile:  # a named profile beats a key in the environment, as in boto3
            identity.append(key)
        digest = hashlib.sha256("\n".join([name, *identity]).encode("utf-8", "surrogateescape"))
        return f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:40]}-{digest.hexdigest()[:12]}"

    def providers(self, kinds: Sequence[str], profile: str) -> Mapping[str, Provider]:
        from deepvm.catalog.clouds.aws.client import Aws
        from deepvm.catalog.clouds.aws.providers import aws_providers, history_provider

        aws = Aws(profile)
        histories = (k for k in kinds if k.startswith(f"{HISTORY}:"))
        past = {k: history_provider(aws, int(k.partition(":")[2])) for k in histories}
        return {**aws_providers(aws), **self.public_providers(), **past}

    def public_providers(self) -> Mapping[str, Provider]:
        from deepvm.catalog.clouds.aws.providers import AdvisorProvider

        return {ADVISOR: AdvisorProvider()}

    def placement_provider(self, profile: str, types: Sequence[str], count: int) -> Provider:
        from deepvm.catalog.clouds.aws.client import Aws
        from deepvm.catalog.clouds.aws.providers import placement_provider

        return placement_provider(Aws(profile), types, count)

    def policy(self) -> str:
        """The permissions that deepvm needs, as the JSON text of a read-only IAM policy."""
        return (self.data / "iam-policy.json").read_text(encoding="utf-8")

    def check(self, profile: str, region: str, now: datetime, total_s: float) -> tuple[Check, ...]:
        """What ``deepvm doctor`` reports, waiting at most ``total_s`` for an answer."""
        from deepvm.catalog.clouds.aws.checks import check_aws
        from deepvm.catalog.clouds.aws.client import Aws

        return check_aws(Aws(profile, region, total_s=total_s), region, now)


def _profile_name(profile: str) -> str:
    variables = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
    return next(filter(None, (profile, *map(os.environ.get, variables))), "default")


def _files() -> tuple[Path, Path]:
    names = (
        os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config",
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
    )
    config, credentials = (Path(os.path.expanduser(name)) for name in names)
    return config, credentials


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _region_of(profile: str, file: Path) -> str:
    from configparser import Error, RawConfigParser

    # AWS has no section of defaults, and its tools accept duplicate profiles.
    parser = RawConfigParser(strict=False, default_section="")
    with contextlib.suppress(Error):  # is left to boto3
        parser.read_string(_text(file))
    names = (profile, f"profile {profile}", f'profile "{profile}"')
    regions = [parser.get(n, "region", fallback="") for n in names]
    return next(filter(None, regions), "")
