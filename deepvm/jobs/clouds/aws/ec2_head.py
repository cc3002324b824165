"""Remote controllers on EC2: a small on-demand instance that runs the controller of one job."""

from __future__ import annotations

import json
import os
import time

from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Market
from deepvm.io.own_package import package_archive, requirements
from deepvm.jobs.cloud import Listing, Objects, RefusedError, UnknownError, head_name
from deepvm.jobs.clouds.aws.ec2_cloud import HEAD, ROLE_TAG, Ec2Cloud, own_address
from deepvm.jobs.clouds.aws.ec2_settings import PREFIX
from deepvm.jobs.clouds.aws.s3_objects import S3Objects
from deepvm.jobs.clouds.aws.user_data import head_data
from deepvm.jobs.decisions.world import MachineRecord, Pool

_USD_PER_HOUR = {
    "t3.small": 0.0208,
    "t3.medium": 0.0416,
    "t4g.small": 0.0168,
    "t4g.medium": 0.0336,
    "m7g.medium": 0.0408,
}
"""On demand in us-east-1, of types that are too small for the catalog."""
SETTINGS = "settings.json"
"""Among the objects of a head: what its first process must know."""
_AT_HOME = ("HEAD_TYPE", "HEAD_PROFILE")


class HeadedEc2Cloud(Ec2Cloud):
    """See :class:`deepvm.jobs.cloud.HostsController`."""

    def controls_here(self) -> bool:
        return bool(self._settings.controller_host or own_address())

    def check_head(self) -> None:
        self.head_usd_per_hour()
        profile = self._settings.head_profile
        self._account.check_profile(
            profile, f"{PREFIX}HEAD_PROFILE", "the machine of the controller rents the others"
        )
        self._account.zones(self._settings.head_type)
        self._account.image(self._settings.head_type)

    def objects(self, job: str) -> Objects:
        return S3Objects(self._account, f"{self._prefix(job)}/{HEAD}")

    def head_type(self) -> str:
        return self._settings.head_type

    def head_usd_per_hour(self) -> float:
        name = self._settings.head_type
        if name in _USD_PER_HOUR:
            return _USD_PER_HOUR[name]
        known = load_catalog().by_name.get(name)
        price = None if known is None else known.usd_per_hour(Market.ON_DEMAND)
        if price is None:
            small = ", ".join(sorted(_USD_PER_HOUR))
            raise RefusedError(
                f"{PREFIX}HEAD_TYPE: the price of {name} is not known; take {small}, or one of the"
                " catalog"
            )
        return float(price)

    def start_head(self, job: str, number: int) -> None:
        name = head_name(number)
        settings = self._settings
        objects = self.objects(job)
        if name in self.heads(job).alive:
            return
        pool = Pool(
            settings.head_type, settings.region, Market.ON_DEMAND.value, self.head_usd_per_hour()
        )
        shown = {
            k: v
            for k, v in os.environ.items()
            if k.startswith(PREFIX) and k.removeprefix(PREFIX) not in _AT_HOME
        }
        environ = {**shown, f"{PREFIX}BUCKET": self._account.bucket, "AWS_REGION": settings.region}
        environ |= {f"{PREFIX}HEAD_TYPE": settings.head_type, "AWS_DEFAULT_REGION": settings.region}
        known = {"job": job, "owner": self.owner, "environ": environ}
        objects.put(SETTINGS, json.dumps(known).encode())
        if not settings.install:
            objects.put("package.tar.gz", package_archive(data=True, libraries=False))
        place = f"{self._prefix(job)}/{HEAD}"
        script = head_data(
            job,
            settings.region,
            self._account.bucket,
            place,
            requirements(),
            python=settings.python,
            install=settings.install,
        )
        asked = self._asked(job, name, pool, script, settings.head_profile, more={ROLE_TAG: HEAD})
        self._controlled.add(job)
        self._launched(MachineRecord(name, pool, time.time()), job, asked)

    def heads(self, job: str) -> Listing:
        return self._listing(job, self._instances(job, heads=True))

    def end_head(self, job: str, name: str) -> None:
        try:
            self._end(job, name)
        except RefusedError as error:
            raise UnknownError(str(error)) from None
