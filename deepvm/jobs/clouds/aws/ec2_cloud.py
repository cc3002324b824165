"""Machines of EC2: one instant fleet for each, found again by its tags."""
# Its client token follows from the tags: a request that is sent again makes nothing new.

import hashlib
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from deepvm.catalog.clouds.aws.client import Aws
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Market
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.io.own_package import package_archive, requirements
from deepvm.jobs.cloud import Cloud, Launch, Listing, RefusedError, Start, UnknownError, head_name
from deepvm.jobs.clouds.aws import ec2_requests
from deepvm.jobs.clouds.aws.ec2_account import Ec2Account, S3Objects
from deepvm.jobs.clouds.aws.ec2_requests import MACHINE_TAG, SPOT, Instance, kept, tag_is
from deepvm.jobs.clouds.aws.ec2_settings import PREFIX, Ec2Settings, user_data
from deepvm.jobs.clouds.aws.s3_read import metadata
from deepvm.jobs.decisions.world import MachineRecord, Pool

OWNER_TAG = "deepvm:owner"
JOB_TAG = "deepvm:job"
ROLE_TAG = "deepvm:role"
HEAD = "head"  # The role of a machine that runs the controller, and is no machine of the job
# So long a machine that was made may be missing in EC2's answers: they are consistent later
_LATE_S = 300.0
_OWNER = ".aws-owner"
_LAST_LINES = 40
_GONE = ("InvalidLaunchTemplateName.NotFoundException", "InvalidLaunchTemplateId.NotFound")
SETTINGS = "settings.json"  # Among the objects of a head: what its first process must know
_AT_HOME = (f"{PREFIX}HEAD_TYPE", f"{PREFIX}HEAD_PROFILE")


class Ec2Cloud(Cloud):
    """Machines for jobs, and for their controllers."""

    def __init__(
        self, folder: Path, settings: Ec2Settings | None = None, aws: Aws | None = None
    ) -> None:
        settings = settings or Ec2Settings.of()
        self._folder = folder
        self._settings = settings
        self._account = Ec2Account(aws or Aws("", settings.region, total_s=60.0), settings)
        self._lock = threading.Lock()
        self._made: list[tuple[str, Instance]] = []  # What this process has had made, with its job
        self._put_once = set[str]()
        self._seen_ended: dict[str, float] = {}
        # Jobs of which this process is the controller: only a controller ends machines unasked
        self._controlled = set[str]()

    @classmethod
    def used(cls, folder: Path) -> bool:
        return (folder / _OWNER).exists()

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

    def _url(self, job: str) -> str:
        return f"s3://{self._settings.own_bucket}/{self._prefix(job)}/"

    def _template_name(self, job: str) -> str:
        return f"deepvm-{self.owner}-{job}-"

    def host(self, job: str) -> str:
        host = self._settings.controller_host or own_address()
        if not host:
            raise RefusedError(
                "machines on AWS cannot reach a controller on this computer; run deepvm on an EC2"
                " instance in their VPC, or use --detach: a small instance runs the controller"
                " then; or set DEEPVM_CONTROLLER_HOST to an address at which they reach it (VPN,"
                " forwarded port), and DEEPVM_CONTROLLER_PORT to the port"
            )
        return host

    def listen(self) -> tuple[str, int]:
        own = own_address() if not self._settings.controller_host else ""
        return own or "0.0.0.0", self._settings.controller_port

    def announce(self, job: str, url: str) -> None:
        self._controlled.add(job)
        self._objects(job).put("controller", url.encode())

    def tier(self, job: str) -> str:
        return f"{self._url(job)}versions"

    def whole(self) -> str:
        return self._settings.region

    def names(self, job: str) -> Mapping[str, str]:
        return {
            "instances": (
                f"deepvm {job} m1 and so on, with the tags {JOB_TAG}={job} and"
                f" {OWNER_TAG}={self.owner}"
            ),
            "launch templates": f"{self._template_name(job)}*",
            "objects": self._url(job),
        }

    def zones(self, instance_type: str, market: str) -> Mapping[str, float | None]:
        self._account.check()
        names = self._account.zones(instance_type)
        prices: dict[str, float] = {}
        if market == SPOT:
            prices = self._account.spot_prices(instance_type)
        ordered = sorted(names, key=lambda name: prices.get(name, math.inf))
        return {name: prices.get(name) for name in ordered}

    def request(self, record: MachineRecord, start: Start) -> Launch:
        job = start.job
        self._controlled.add(job)
        # An earlier request of this name counts, no matter what became of it.
        there = self._instances(job)
        known = kept(there).get(record.id)
        if known is not None:
            return self._launch(record, known)
        about = {
            **asdict(start),
            "secret": start.secret.hex(),
            "role": record.role.value,
            "market": record.pool.market,
        }
        try:
            self._objects(job).put(f"machines/{record.id}.json", json.dumps(about).encode())
            self._put(job, "controller", start.controller.encode(), once=start.controller)
            if not self._settings.install:
                self._put(job, "package.tar.gz", package_archive(), once="package")
            script = user_data(job, self._settings, self._prefix(job))
            near = [i.zone for i in there if i.alive]
            asked = self._asked(job, record, script, near, start.most_usd_per_hour)
        except UnknownError as error:
            raise RefusedError(str(error)) from None  # nothing was asked for yet
        return self._launched(record, job, asked, start.most_usd_per_hour)

    def _asked(
        self,
        job: str,
        record: MachineRecord,
        script: str,
        near: Sequence[str] = (),
        most_usd: float | None = None,
    ) -> JsonDict:
        account = self._account
        machine, pool = record.id, record.pool
        profile = self._settings.instance_profile
        tags = {OWNER_TAG: self.owner, JOB_TAG: job}
        named = {**tags, MACHINE_TAG: machine}
        if _is_head(machine):
            profile = self._settings.head_profile
            named[ROLE_TAG] = HEAD
        named["Name"] = f"deepvm {job} {machine}"
        image = account.image(pool.instance_type)
        data = ec2_requests.template_data(script, image, profile, self._settings.security_group)
        template = self._template(job, data, tags)
        offered = [zone for zone in account.zones(pool.instance_type) if zone.startswith(pool.zone)]
        if not offered:
            raise RefusedError(
                f"{pool.instance_type} is not offered in {pool.zone}, or there is no subnet"
            )
        # The machines of a job exchange much: on demand they come to where the others are
        offered.sort(key=lambda zone: -near.count(zone))
        # AWS would refuse another limit of prices under the same token
        request = f"{self.owner} {job} {machine}"
        if most_usd is not None:
            request += f" {most_usd}"
        token = hashlib.sha256(request.encode()).hexdigest()[:40]
        subnets = [account.subnets[zone] for zone in offered]
        return ec2_requests.fleet_request(pool, template, subnets, token, named, most_usd)

    def _template(self, job: str, data: JsonObject, tags: Mapping[str, str]) -> str:
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]
        name = self._template_name(job) + digest
        if name not in self._put_once:
            self._account.ask(
                "ec2",
                "CreateLaunchTemplate",
                ("InvalidLaunchTemplateName.AlreadyExistsException",),
                LaunchTemplateName=name,
                LaunchTemplateData=data,
                TagSpecifications=ec2_requests.tagged("launch-template", tags),
            )
            self._put_once.add(name)
        return name

    def _launched(
        self, record: MachineRecord, job: str, asked: JsonObject, most_usd: float | None = None
    ) -> Launch:
        answer = self._account.ask("ec2", "CreateFleet", ec2_requests.REFUSALS, **asked)
        if isinstance(answer, str):
            raise RefusedError(ec2_requests.refusal(record.pool, [answer]))
        made = [
            (name, row.get("LaunchTemplateAndOverrides", {}).get("Overrides", {}))
            for row in answer.get("Instances") or ()
            for name in row["InstanceIds"]
        ]
        if not made:
            codes = [str(e.get("ErrorCode", "")) for e in answer.get("Errors") or ()]
            raise RefusedError(ec2_requests.refusal(record.pool, codes, most_usd))
        (name, where), *others = made
        zone_of = {subnet: zone for zone, subnet in self._account.subnets.items()}
        zone = zone_of.get(where.get("SubnetId", ""), where.get("AvailabilityZone", ""))
        instance = Instance(name, record.id, zone, time.time())
        with self._lock:
            self._made.append((job, instance))
        if others:  # one was asked for
            with suppress(UnknownError, RefusedError):
                self._terminate([other for other, _ in others])
        return self._launch(record, instance)

    def _launch(self, record: MachineRecord, instance: Instance) -> Launch:
        # The price of the pool is of the day when the job was submitted
        usd_per_hour = None
        if record.pool.market == SPOT:
            usd_per_hour = self._account.spot_prices(record.pool.instance_type).get(instance.zone)
        return Launch(instance.launched_s, instance.zone, usd_per_hour)

    def listing(self, job: str) -> Listing:
        return self._listing(job, heads=False)

    def _listing(self, job: str, *, heads: bool) -> Listing:
        instances = self._instances(job, heads=heads)
        # If names repeat the oldest machine counts, and the others are ended
        one = kept(instances)
        surplus = [i.id for i in instances if i.alive and one[i.machine] is not i]
        if surplus and job in self._controlled:
            with suppress(RefusedError, UnknownError):  # the next look tries again
                self._terminate(surplus)
        now_s = time.time()
        ended = {
            name: (i.launched_s, self._ended_s(i, now_s)) for name, i in one.items() if not i.alive
        }
        return Listing(
            {name: i.launched_s for name, i in one.items() if i.alive},
            ended,
            {name: i.zone for name, i in one.items() if i.zone},
            frozenset(name for name in ended if one[name].taken),
        )

    def jobs(self) -> list[str]:
        alive = {"Name": "instance-state-name", "Values": list(ec2_requests.ALIVE)}
        rows = self._described([tag_is(OWNER_TAG, self.owner), alive])
        tags = [tag for row in rows for tag in row.get("Tags") or ()]
        return sorted({tag["Value"] for tag in tags if tag["Key"] == JOB_TAG})

    def last_lines(self, job: str, machine: str) -> list[str]:
        # The console, as EC2 keeps it for an hour
        for instance in self._rows(job, machine)[:1]:
            with suppress(RefusedError):
                answer = self._account.ask("ec2", "GetConsoleOutput", InstanceId=instance.id)
                lines = str(answer.get("Output") or "").splitlines()
                return [line for line in lines if line.strip()][-_LAST_LINES:]
        return []

    def _ended_s(self, instance: Instance, now_s: float) -> float:
        if instance.ended_s is not None:
            return instance.ended_s
        with self._lock:
            return self._seen_ended.setdefault(instance.id, now_s)

    def release(self, job: str, machine: str) -> None:
        with _unknown_if_refused():
            found = self._rows(job, machine, heads=_is_head(machine))
            with self._lock:
                made = [i for of, i in self._made if (of, i.machine) == (job, machine)]
            gone = {i.id for i in found if not i.alive}
            alive = dict.fromkeys(i.id for i in [*found, *made] if i.id not in gone)
            # What EC2 does not know yet stays listed, and is released again.
            if alive and self._terminate([*alive]):
                return
            with self._lock:
                self._made = [row for row in self._made if row[1] not in made]
            self._remove(job, [f"machines/{machine}.json"])

    def finish(self, job: str) -> None:
        with _unknown_if_refused():
            alive = [i.id for i in self._instances(job) if i.alive]
            if alive:
                self._terminate(alive)
            templates = self._account.rows("DescribeLaunchTemplates", Filters=self._filters(job))
            for row in templates:
                template = row["LaunchTemplateId"]
                self._account.ask("ec2", "DeleteLaunchTemplate", _GONE, LaunchTemplateId=template)
            machines = self._objects(job).keys("machines/")
            self._remove(job, [*machines, "controller", "package.tar.gz"])
        self._put_once.clear()

    def controls_here(self) -> bool:
        return bool(self._settings.controller_host or own_address())

    def check_head(self) -> None:
        self.head_usd_per_hour()
        self._account.check_profile(
            self._settings.head_profile,
            f"{PREFIX}HEAD_PROFILE",
            "the machine of the controller rents the others",
        )
        self._account.zones(self._settings.head_type)
        self._account.image(self._settings.head_type)

    def objects(self, job: str) -> S3Objects:
        return self._objects(f"{job}/{HEAD}")

    def head_type(self) -> str:
        return self._settings.head_type

    def head_usd_per_hour(self) -> float:
        name = self._settings.head_type
        if name in ec2_requests.HEAD_USD_PER_HOUR:
            return ec2_requests.HEAD_USD_PER_HOUR[name]
        known = load_catalog().by_name.get(name)
        price = known.usd_per_hour(Market.ON_DEMAND) if known else None
        if price is None:
            small = ", ".join(sorted(ec2_requests.HEAD_USD_PER_HOUR))
            raise RefusedError(
                f"{PREFIX}HEAD_TYPE: the price of {name} is not known; take {small}, or one of the"
                " catalog"
            )
        return float(price)

    def start_head(self, job: str, number: int) -> None:
        name = head_name(number)
        settings = self._settings
        if name in self.heads(job).alive:
            return
        objects = self.objects(job)
        pool = Pool(
            settings.head_type, settings.region, Market.ON_DEMAND.value, self.head_usd_per_hour()
        )
        environ = {
            **{k: v for k, v in os.environ.items() if k.startswith(PREFIX) and k not in _AT_HOME},
            f"{PREFIX}BUCKET": settings.own_bucket,
            "AWS_REGION": settings.region,
            f"{PREFIX}HEAD_TYPE": settings.head_type,
            "AWS_DEFAULT_REGION": settings.region,
        }
        known = {"job": job, "owner": self.owner, "environ": environ}
        objects.put(SETTINGS, json.dumps(known).encode())
        if not settings.install:
            objects.put("package.tar.gz", package_archive(data=True, libraries=False))
        script = user_data(job, settings, f"{self._prefix(job)}/{HEAD}", requirements())
        record = MachineRecord(name, pool, time.time())
        asked = self._asked(job, record, script)
        self._controlled.add(job)
        self._launched(record, job, asked)

    def heads(self, job: str) -> Listing:
        return self._listing(job, heads=True)

    def end_head(self, job: str, name: str) -> None:
        self.release(job, name)

    def _filters(self, job: str) -> list[JsonDict]:
        return [tag_is(OWNER_TAG, self.owner), tag_is(JOB_TAG, job)]

    def _described(self, filters: list[JsonDict]) -> list[JsonObject]:
        with _unknown_if_refused():
            found = self._account.rows("DescribeInstances", Filters=filters, MaxResults=500)
        return [row for each in found for row in each.get("Instances") or ()]

    def _rows(self, job: str, machine: str = "", *, heads: bool = False) -> list[Instance]:
        filters = self._filters(job)
        if machine:
            filters.append(tag_is(MACHINE_TAG, machine))
        head = {"Key": ROLE_TAG, "Value": HEAD}
        return [
            ec2_requests.instance_of_row(row)
            for row in self._described(filters)
            if (head in (row.get("Tags") or ())) == heads
        ]

    def _instances(self, job: str, *, heads: bool = False) -> list[Instance]:
        """Those of EC2's answer, and those made a moment ago that are not in it yet."""
        found = self._rows(job, heads=heads)
        listed = {i.id for i in found}
        with self._lock:
            made = [i for of, i in self._made if of == job]
        late = [
            i
            for i in made
            if i.id not in listed
            and _is_head(i.machine) == heads
            and time.time() - i.launched_s < _LATE_S
        ]
        return [*found, *late]

    def _terminate(self, instances: list[str]) -> list[str]:
        """End them; returns those that EC2 does not know."""
        unknown = "InvalidInstanceID.NotFound"
        answer = self._account.ask("ec2", "TerminateInstances", (unknown,), InstanceIds=instances)
        if answer != unknown:
            return []
        if len(instances) == 1:
            return instances
        # One that is unknown spares all
        return [each for one in instances for each in self._terminate([one])]

    def _objects(self, job: str) -> S3Objects:
        return S3Objects(self._account, self._prefix(job))

    def _put(self, job: str, key: str, data: bytes, once: str) -> None:
        """Write an object, unless this process has written the same value, ``once``."""
        mark = f"{job} {key} {once}"
        if mark not in self._put_once:
            self._objects(job).put(key, data)
            self._put_once.add(mark)

    def _remove(self, job: str, keys: list[str]) -> None:
        with suppress(UnknownError, RefusedError):
            self._objects(job).remove(keys)


def _is_head(machine: str) -> bool:
    return machine.startswith(f"{HEAD}-")


@contextmanager
def _unknown_if_refused() -> Iterator[None]:
    """A refusal leaves the outcome open: machines may live."""
    try:
        yield
    except RefusedError as error:
        raise UnknownError(str(error)) from None


def own_address() -> str:
    """The private address of this computer if it is an EC2 instance, else empty."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return ""
    try:
        return metadata("local-ipv4", timeout_s=1.0).strip()
    except (OSError, ValueError):
        return ""
