"""Machines of EC2: one instant fleet for each, found again by its tags.

A request is known by three names: the tags ``deepvm:owner`` and ``deepvm:job`` are the job's,
``deepvm:machine`` is the machine's; and the fleet's client token follows from them, so that a
request that is sent again makes nothing new.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from deepvm.catalog.clouds.aws.client import Aws
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Market
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.io.own_package import package_archive, requirements
from deepvm.jobs.cloud import Launch, Listing, Objects, RefusedError, Start, UnknownError, head_name
from deepvm.jobs.clouds.aws.ec2_account import Ec2Account
from deepvm.jobs.clouds.aws.ec2_requests import (
    ALIVE,
    REFUSALS,
    Instance,
    fleet_request,
    instance_of_row,
    kept,
    refusal,
    template_data,
)
from deepvm.jobs.clouds.aws.ec2_settings import PREFIX, Ec2Settings
from deepvm.jobs.clouds.aws.s3_objects import S3Objects
from deepvm.jobs.clouds.aws.user_data import user_data
from deepvm.jobs.decisions.world import MachineRecord, Pool

OWNER_TAG = "deepvm:owner"
JOB_TAG = "deepvm:job"
MACHINE_TAG = "deepvm:machine"
ROLE_TAG = "deepvm:role"
HEAD = "head"
"""The role of a machine that runs the controller, and is no machine of the job."""
_LATE_S = 300.0
"""So long a machine that was made may be missing in EC2's answers: they are consistent later."""
_OWNER = ".aws-owner"
_LAST_LINES = 40
_SPOT = "spot"
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


class Ec2Cloud:
    """See the protocols of :mod:`deepvm.jobs.cloud`: also what rents machines for controllers."""

    can_preempt: ClassVar = False
    near: ClassVar = False

    def __init__(
        self,
        folder: Path,
        settings: Ec2Settings,
        aws: Aws | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``folder``: of the jobs of this user. Nothing is asked yet."""
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._account = Ec2Account(aws or Aws("", settings.region, total_s=60.0), settings)
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str], list[Instance]] = {}
        """What this process has had made, by job and machine."""
        self._put_once = set[str]()
        self._seen_ended: dict[str, float] = {}
        self._controlled = set[str]()
        """Jobs of which this process is the controller: only a controller ends machines unasked."""

    @classmethod
    def open(cls, folder: Path) -> Ec2Cloud:
        return cls(folder, Ec2Settings.of())

    @classmethod
    def used(cls, folder: Path) -> bool:
        return (folder / _OWNER).exists()

    # --- where things are -------------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """Whose jobs these are: two people may use one account, and the same name for a job."""
        place = self._folder / _OWNER
        if not place.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            new = place.with_name(f"{_OWNER}.{secrets.token_hex(4)}")
            new.write_text(secrets.token_hex(6))
            with suppress(FileExistsError):
                os.link(new, place)  # whole, and only if there is none yet
            new.unlink()
        return place.read_text().strip()

    def _prefix(self, job: str) -> str:
        return f"deepvm/{self.owner}/{job}"

    def _template_name(self, job: str) -> str:
        return f"deepvm-{self.owner}-{job}-"

    def host(self, job: str) -> str:
        if self._settings.controller_host:
            return self._settings.controller_host
        own = own_address()
        if not own:
            raise RefusedError(
                "machines on AWS cannot reach a controller on this computer; run deepvm on an EC2"
                " instance in their VPC, or use --detach: a small instance runs the controller"
                " then; or set DEEPVM_CONTROLLER_HOST to an address at which they reach it (VPN,"
                " forwarded port), and DEEPVM_CONTROLLER_PORT to the port"
            )
        return own

    def listen(self) -> tuple[str, int]:
        if self._settings.controller_host:
            own = ""
        else:
            own = own_address()
        return own or "0.0.0.0", self._settings.controller_port

    def announce(self, job: str, url: str) -> None:
        self._controlled.add(job)
        self._put(job, "controller", url.encode())

    def tier(self, job: str) -> str:
        return f"s3://{self._account.bucket}/{self._prefix(job)}/versions"

    def whole(self) -> str:
        return self._settings.region

    def names(self, job: str) -> Mapping[str, str]:
        return {
            "instances": (
                f"deepvm {job} m1 and so on, with the tags {JOB_TAG}={job} and"
                f" {OWNER_TAG}={self.owner}"
            ),
            "launch templates": f"{self._template_name(job)}*",
            "objects": f"s3://{self._account.bucket}/{self._prefix(job)}/",
        }

    def zones(self, instance_type: str, market: str) -> Mapping[str, float | None]:
        self._account.check()
        names = self._account.zones(instance_type)
        if market == _SPOT:
            prices = self._account.spot_prices(instance_type)
        else:
            prices = {}
        return {
            name: prices.get(name)
            for name in sorted(names, key=lambda name: prices.get(name, float("inf")))
        }

    # --- machines ---------------------------------------------------------------------------------

    def request(self, record: MachineRecord, start: Start) -> Launch:
        self._controlled.add(start.job)
        # An earlier request of this name counts, no matter what became of it.
        there = self._instances(start.job)
        known = kept(there).get(record.id)
        if known is not None:
            return Launch(known.launched_s, known.zone, self._usd_per_hour(record, known.zone))
        try:
            asked = self._prepared(record, start, [i.zone for i in there if i.alive])
        except UnknownError as error:
            raise RefusedError(str(error)) from None  # nothing was asked for yet
        return self._launched(record, start.job, asked, start.most_usd_per_hour)

    def _prepared(self, record: MachineRecord, start: Start, near: list[str]) -> JsonDict:
        """Put what the machine must know where it finds it; returns the request for it."""
        account = self._account
        pool = record.pool
        prefix = self._prefix(start.job)
        known = {
            **asdict(start),
            "secret": start.secret.hex(),
            "role": record.role.value,
            "market": pool.market,
        }
        self._put(start.job, f"machines/{record.id}.json", json.dumps(known).encode())
        self._put(start.job, "controller", start.controller.encode(), once=start.controller)
        settings = self._settings
        if not settings.install:
            self._put(start.job, "package.tar.gz", package_archive(), once="package")
        script = user_data(
            start.job,
            settings.region,
            account.bucket,
            prefix,
            python=settings.python,
            install=settings.install,
        )
        most_usd = start.most_usd_per_hour
        return self._asked(
            start.job, record.id, pool, script, settings.instance_profile, near, most_usd=most_usd
        )

    def _asked(
        self,
        job: str,
        machine: str,
        pool: Pool,
        script: str,
        profile: str,
        near: Sequence[str] = (),
        more: Mapping[str, str] = MappingProxyType({}),
        most_usd: float | None = None,
    ) -> JsonDict:
        """The request for a machine that runs a script in a role, for at most ``most_usd`` $/h."""
        account = self._account
        tags = {OWNER_TAG: self.owner, JOB_TAG: job}
        image = account.image(pool.instance_type)
        name = self._template(
            job, template_data(script, image, profile, self._settings.security_group), tags
        )
        subnets = account.subnets
        offered = [zone for zone in account.zones(pool.instance_type) if zone.startswith(pool.zone)]
        if not offered:
            raise RefusedError(
                f"{pool.instance_type} is not offered in {pool.zone}, or there is no subnet"
            )
        # The machines of a job exchange much: on demand they come to where the others are, if they
        # can.
        offered.sort(key=lambda zone: -near.count(zone))
        # With another limit of prices it is another request, which AWS would refuse under the same
        # token.
        asked = f"{self.owner} {job} {machine}" + ("" if most_usd is None else f" {most_usd}")
        token = hashlib.sha256(asked.encode()).hexdigest()[:40]
        named = {**tags, MACHINE_TAG: machine, **more, "Name": f"deepvm {job} {machine}"}
        return fleet_request(
            pool, name, {zone: subnets[zone] for zone in offered}, token, named, most_usd
        )

    def _template(self, job: str, data: JsonObject, tags: Mapping[str, str]) -> str:
        """The name of a launch template with this data; the name contains a digest of it."""
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]
        name = self._template_name(job) + digest
        if name in self._put_once:
            return name
        self._account.ask(
            "ec2",
            "CreateLaunchTemplate",
            ("InvalidLaunchTemplateName.AlreadyExistsException",),
            LaunchTemplateName=name,
            LaunchTemplateData=data,
            TagSpecifications=[
                {
                    "ResourceType": "launch-template",
                    "Tags": [{"Key": k, "Value": v} for k, v in tags.items()],
                }
            ],
        )
        self._put_once.add(name)
        return name

    def _launched(
        self,
        record: MachineRecord,
        job: str,
        asked: JsonObject,
        most_usd: float | None = None,
    ) -> Launch:
        answer = self._account.ask("ec2", "CreateFleet", REFUSALS, **asked)
        if isinstance(answer, str):
            raise RefusedError(refusal(record.pool, [answer]))
        zone_of = {subnet: zone for zone, subnet in self._account.subnets.items()}
        made = [
            (name, row.get("LaunchTemplateAndOverrides", {}).get("Overrides", {}))
            for row in answer.get("Instances") or ()
            for name in row["InstanceIds"]
        ]
        if not made:
            codes = [str(e.get("ErrorCode", "")) for e in answer.get("Errors") or ()]
            raise RefusedError(refusal(record.pool, codes, most_usd))
        name, where = made[0]
        zone = zone_of.get(where.get("SubnetId", ""), where.get("AvailabilityZone", ""))
        launched_s = self._clock()
        with self._lock:
            instance = Instance(name, record.id, zone, launched_s)
            self._made.setdefault((job, record.id), []).append(instance)
        if len(made) > 1:  # one was asked for
            with suppress(UnknownError, RefusedError):
                self._terminate([other for other, _ in made[1:]])
        return Launch(launched_s, zone, self._usd_per_hour(record, zone))

    def _usd_per_hour(self, record: MachineRecord, zone: str) -> float | None:
        """The spot price now: that of the pool is of the day on which the job was submitted."""
        if record.pool.market != _SPOT:
            return None
        return self._account.spot_prices(record.pool.instance_type).get(zone)

    def listing(self, job: str) -> Listing:
        """See :class:`Cloud`. If names repeat, the oldest machine counts; the others are ended."""
        return self._listing(job, self._instances(job))

    def _listing(self, job: str, instances: list[Instance]) -> Listing:
        one = kept(instances)
        surplus = [i.id for i in instances if i.alive and one[i.machine] is not i]
        if surplus and job in self._controlled:
            with suppress(RefusedError, UnknownError):  # the next look tries again
                self._terminate(surplus)
        alive = {name: i.launched_s for name, i in one.items() if i.alive}
        now_s = self._clock()
        ended = dict[str, tuple[float, float]]()
        for name, instance in one.items():
            if not instance.alive:
                ended[name] = instance.launched_s, self._ended_s(instance, now_s)
        taken = frozenset(name for name, i in one.items() if not i.alive and i.taken)
        return Listing(alive, ended, {name: i.zone for name, i in one.items() if i.zone}, taken)

    def jobs(self) -> list[str]:
        filters = [self._owner_filter(), {"Name": "instance-state-name", "Values": list(ALIVE)}]
        tags = [tag for row in self._described(filters) for tag in row.get("Tags") or ()]
        return sorted({tag["Value"] for tag in tags if tag["Key"] == JOB_TAG})

    def last_lines(self, job: str, machine: str) -> list[str]:
        """See :class:`Cloud`: the end of the console, as EC2 keeps it for an hour."""
        for instance in self._rows(job, machine)[:1]:
            with suppress(RefusedError):
                answer = self._account.ask("ec2", "GetConsoleOutput", InstanceId=instance.id)
                lines = str(answer.get("Output") or "").splitlines()
                return [line for line in lines if line.strip()][-_LAST_LINES:]
        return []

    def _ended_s(self, instance: Instance, now_s: float) -> float:
        """When an instance ended; where EC2 does not say, when that was first seen."""
        if instance.ended_s is not None:
            return instance.ended_s
        with self._lock:
            return self._seen_ended.setdefault(instance.id, now_s)

    def release(self, job: str, machine: str) -> None:
        try:
            self._end(job, machine)
        except RefusedError as error:
            raise UnknownError(str(error)) from None  # it may live

    def _end(self, job: str, machine: str) -> None:
        found = self._rows(job, machine, heads=machine.startswith(f"{HEAD}-"))
        with self._lock:
            made = list(self._made.get((job, machine), ()))
        # What was made a moment ago may not be listed yet.
        gone = {i.id for i in found if not i.alive}
        alive = [
            *dict.fromkeys(
                [i.id for i in found if i.alive] + [i.id for i in made if i.id not in gone]
            )
        ]
        # What EC2 does not know yet it may know later: it stays listed, and is released again.
        if alive and self._terminate(alive):
            return
        with self._lock:
            self._made.pop((job, machine), None)
        self._remove(job, [f"machines/{machine}.json"])

    def finish(self, job: str) -> None:
        """See :class:`Cloud`: also the last look for machines of this job."""
        try:
            alive = [i.id for i in self._instances(job) if i.alive]
            if alive:
                self._terminate(alive)
            tags = self._tag_filters(job)
            templates = self._account.rows("DescribeLaunchTemplates", Filters=tags)
            for row in templates:
                self._account.ask(
                    "ec2",
                    "DeleteLaunchTemplate",
                    (
                        "InvalidLaunchTemplateName.NotFoundException",
                        "InvalidLaunchTemplateId.NotFound",
                    ),
                    LaunchTemplateId=row["LaunchTemplateId"],
                )
            machines = self._objects(job).keys("machines/")
            self._remove(job, [*machines, "controller", "package.tar.gz"])
        except RefusedError as error:
            raise UnknownError(str(error)) from None
        self._put_once.clear()

    def preempt(self, job: str, machine: str, grace_s: float | None) -> None:
        raise UnknownError("AWS takes machines back itself")

    def recommend(self, job: str, machine: str) -> None:
        raise UnknownError("AWS recommends a rebalance itself")

    # --- heads ------------------------------------------------------------------------------------

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
        return self._objects(f"{job}/{HEAD}")

    def head_type(self) -> str:
        return self._settings.head_type

    def head_usd_per_hour(self) -> float:
        name = self._settings.head_type
        if name in _USD_PER_HOUR:
            return _USD_PER_HOUR[name]
        known = load_catalog().by_name.get(name)
        if known is None:
            price = None
        else:
            price = known.usd_per_hour(Market.ON_DEMAND)
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
        script = user_data(
            job,
            settings.region,
            self._account.bucket,
            place,
            python=settings.python,
            install=settings.install,
            requirements=requirements(),
        )
        asked = self._asked(job, name, pool, script, settings.head_profile, more={ROLE_TAG: HEAD})
        self._controlled.add(job)
        self._launched(MachineRecord(name, pool, time.time()), job, asked)

    def heads(self, job: str) -> Listing:
        return self._listing(job, self._instances(job, heads=True))

    def end_head(self, job: str, name: str) -> None:
        self.release(job, name)

    # --- calls ------------------------------------------------------------------------------------

    def _owner_filter(self) -> JsonDict:
        return {"Name": f"tag:{OWNER_TAG}", "Values": [self.owner]}

    def _tag_filters(self, job: str) -> list[JsonDict]:
        return [self._owner_filter(), {"Name": f"tag:{JOB_TAG}", "Values": [job]}]

    def _described(self, filters: list[JsonDict]) -> list[JsonObject]:
        """EC2's rows of instances. Raises UnknownError."""
        try:
            found = self._account.rows("DescribeInstances", Filters=filters, MaxResults=500)
        except RefusedError as error:
            raise UnknownError(str(error)) from None
        return [row for each in found for row in each.get("Instances") or ()]

    def _rows(self, job: str, machine: str = "", *, heads: bool = False) -> list[Instance]:
        """EC2's instances of a job, or of one machine, in any state, or its heads.

        Raises UnknownError.
        """
        filters = self._tag_filters(job)
        if machine:
            filters.append({"Name": f"tag:{MACHINE_TAG}", "Values": [machine]})
        rows = self._described(filters)
        head = {"Key": ROLE_TAG, "Value": HEAD}
        return [
            instance_of_row(row, MACHINE_TAG)
            for row in rows
            if (head in (row.get("Tags") or ())) == heads
        ]

    def _instances(self, job: str, *, heads: bool = False) -> list[Instance]:
        """Those of EC2's answer, and those that were made a moment ago and are not in it yet."""
        found = self._rows(job, heads=heads)
        listed = {i.id for i in found}
        with self._lock:
            late = [
                i
                for (of, _), made in self._made.items()
                if of == job
                for i in made
                if i.id not in listed
            ]
            late = [i for i in late if i.machine.startswith(f"{HEAD}-") == heads]
        return [*found, *(i for i in late if self._clock() - i.launched_s < _LATE_S)]

    def _terminate(self, instances: list[str]) -> list[str]:
        """End them; returns those that EC2 does not know. Raises UnknownError, RefusedError."""
        unknown = "InvalidInstanceID.NotFound"
        if (
            self._account.ask("ec2", "TerminateInstances", (unknown,), InstanceIds=instances)
            != unknown
        ):
            return []
        if len(instances) == 1:
            return instances
        # One that is unknown spares all
        return [each for one in instances for each in self._terminate([one])]

    def _objects(self, job: str) -> S3Objects:
        return S3Objects(self._account, self._prefix(job))

    def _put(self, job: str, key: str, data: bytes, once: str = "") -> None:
        """Write an object; ``once``: skip if this process has written the same value."""
        mark = f"{job} {key} {once}"
        if not once or mark not in self._put_once:
            self._objects(job).put(key, data)
            self._put_once.add(mark)

    def _remove(self, job: str, keys: list[str]) -> None:
        with suppress(UnknownError, RefusedError):
            self._objects(job).remove(keys)


def own_address() -> str:
    """The private address of this computer if it is an EC2 instance, else empty."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return ""
    from deepvm.jobs.clouds.aws.s3_read import metadata

    try:
        return metadata("local-ipv4", timeout_s=1.0).strip()
    except (OSError, ValueError):
        return ""
