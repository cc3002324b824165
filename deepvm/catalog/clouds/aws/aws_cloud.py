"""Amazon Web Services, as the registry of clouds knows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from deepvm.catalog.clouds.aws import credentials, quota_codes, regions
from deepvm.catalog.signals.cloud import Check, Cloud, Region
from deepvm.catalog.signals.signal import ADVISOR, HISTORY, Provider

# Account, providers and checks are imported in the methods: most commands ask nobody.


class AwsCloud(Cloud):
    """See :class:`Cloud` for the methods."""

    name = "aws"
    title = "AWS"
    quota_families = quota_codes.FAMILIES

    def quota_family(self, type_name: str) -> str:
        """See :meth:`Cloud.quota_family`."""
        return quota_codes.quota_family(type_name)

    def check_region(self, name: str, option: str = "region") -> str:
        """See :meth:`Cloud.check_region`."""
        return regions.check_region(name, option)

    def own_region(self, named: str, profile: str, environ: Mapping[str, str]) -> Region:
        """See :meth:`Cloud.own_region`."""
        return regions.region_of(named, profile, environ)

    def known_regions(self) -> Collection[str]:
        """See :meth:`Cloud.known_regions`."""
        return regions.known_regions()

    def account_regions(self, profile: str) -> tuple[str, ...]:
        """See :meth:`Cloud.account_regions`."""
        from deepvm.catalog.clouds.aws.client import Aws

        return Aws(profile).regions()

    def credentials_may_exist(self, profile: str, environ: Mapping[str, str]) -> bool:
        """See :meth:`Cloud.credentials_may_exist`."""
        return credentials.credentials_may_exist(profile, environ)

    def account_tag(self, profile: str, environ: Mapping[str, str]) -> str:
        """See :meth:`Cloud.account_tag`."""
        return credentials.account_tag(profile, environ)

    def providers(self, kinds: Sequence[str], profile: str) -> Mapping[str, Provider]:
        """See :meth:`Cloud.providers`."""
        from deepvm.catalog.clouds.aws.client import Aws
        from deepvm.catalog.clouds.aws.providers import HistoryProvider, aws_providers

        aws = Aws(profile)
        histories = (k for k in kinds if k.startswith(f"{HISTORY}:"))
        past = {k: HistoryProvider(aws, int(k.partition(":")[2])) for k in histories}
        return {**aws_providers(aws), **self.public_providers(), **past}

    def public_providers(self) -> Mapping[str, Provider]:
        """See :meth:`Cloud.public_providers`."""
        from deepvm.catalog.clouds.aws.spot_advisor import AdvisorProvider

        return {ADVISOR: AdvisorProvider()}

    def placement_provider(self, profile: str, types: Sequence[str], count: int) -> Provider:
        """See :meth:`Cloud.placement_provider`."""
        from deepvm.catalog.clouds.aws.client import Aws
        from deepvm.catalog.clouds.aws.providers import PlacementProvider

        return PlacementProvider(Aws(profile), types, count)

    def secrets_of(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """See :meth:`Cloud.secrets_of`."""
        from deepvm.catalog.clouds.aws.redaction import secrets_of

        return secrets_of(environ)

    def policy(self) -> str:
        """See :meth:`Cloud.policy`: a read-only IAM policy, as JSON text that IAM accepts."""
        return (self.data / "iam-policy.json").read_text(encoding="utf-8")

    def check(self, profile: str, region: str, now: datetime, total_s: float) -> tuple[Check, ...]:
        """See :meth:`Cloud.check`."""
        from deepvm.catalog.clouds.aws.checks import check_aws
        from deepvm.catalog.clouds.aws.client import Aws, Patience

        return check_aws(Aws(profile, region, patience=Patience(total_s=total_s)), region, now)
