"""An EC2 and an S3 over HTTP: moto, and in front of it what moto lacks and what goes wrong in a
cloud.

moto ignores client tokens, takes the first of a fleet's overrides, never runs out of capacity, and
has spot prices at which a second costs nothing in any report. The proxy answers a token that it has
seen with the reply that it gave; refuses pools; drops replies after the call went through,
whereupon boto3 repeats the call; and hides new instances from DescribeInstances for a while.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode

import pytest
from support.process_starts import leaves_ring_1

from deepvm.jobs.clouds.aws.ec2_cloud import Ec2Cloud
from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings

_SERVED = ("ec2", "s3", "iam", "ssm", "sts")
_LACKING = ("GetSpotPlacementScores",)
"""What moto has not, as from an account that may not ask it."""
SPOT_USD = b"0.1578"
"""An hour, of any machine."""
REGION, BUCKET, IMAGE, PROFILE = "us-east-1", "jobs", "ami-12c6146b", "deepvm-job"
HEAD_PROFILE = "deepvm-head"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDSECRET0000",
    "AWS_SECRET_ACCESS_KEY": "planted-secret-key-of-the-user",
    "AWS_DEFAULT_REGION": REGION,
}


class FakeEc2:
    """The server and its faults.

    Attributes:
        full: refusal by (type, zone), the zone ``*`` for all. lose: how many replies of CreateFleet
            are dropped after the call. twice: how many fleets bring two instances for the one that
            was asked for, doubled: how many have.
            fail: codes that are answered before the call, by action, one each time. late_s: for how
            long DescribeInstances does not know an instance. calls: (service, action, parameters)
            of all requests.
    """

    def __init__(self, moto: Callable[..., Any]) -> None:
        self._moto, self._lock, self._one_at_a_time = moto, threading.Lock(), threading.Lock()
        self.url = ""
        self.reset()

    def reset(self) -> None:
        self.full: dict[tuple[str, str], str] = {}
        self.fail: dict[str, list[str]] = {}
        self.lose = self.twice = self.doubled = 0
        self.late_s = 0.0
        self.forget_tokens = False
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self._tokens: dict[str, tuple[str, list[tuple[str, str]], bytes]] = {}
        self._born: dict[str, float] = {}

    # --- HTTP -------------------------------------------------------------------------------------

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        scope = environ.get("HTTP_AUTHORIZATION", "").split("/")
        service = scope[3] if len(scope) > 3 else ""
        if service not in _SERVED:
            refused = json.dumps(
                {"__type": "AccessDeniedException", "Message": "not here"}
            ).encode()
            return self._send(
                start_response,
                "400 Bad Request",
                [("Content-Type", "application/x-amz-json-1.1")],
                refused,
            )
        if service != "ec2":
            target = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
            action = target or _action(environ, body)
            given: dict[str, Any] = {
                "path": environ["PATH_INFO"],
                "query": environ.get("QUERY_STRING", ""),
            }
            given["body"] = body
            self.calls.append((service, action, given))
            return self._send(start_response, *self._pass(environ, body))
        given = {k: v[0] for k, v in parse_qs(body.decode()).items()}
        action = given["Action"]
        with self._lock:
            self.calls.append((service, action, given))
            codes = self.fail.get(action, [])
            code = codes.pop(0) if codes else ""
        if action in _LACKING:
            code = "UnauthorizedOperation"
        if code:
            return self._send(start_response, *_error(code))
        if action == "CreateFleet":
            return self._fleet(environ, start_response, given)
        found = self._pass(environ, body)
        if action == "DescribeSpotPriceHistory":
            found = found[0], found[1], found[2].replace(b"0.00001", SPOT_USD)
        if action == "DescribeInstances" and self.late_s:
            found = found[0], found[1], self._without_young(found[2])
        return self._send(start_response, *found)

    def _fleet(
        self, environ: dict[str, Any], start_response: Callable[..., Any], given: dict[str, str]
    ) -> Any:
        token = given["ClientToken"]
        with self._lock:  # one at a time: a token that is sent twice at once counts once
            if token in self._tokens and not self.forget_tokens:
                found = self._tokens[token]
            else:
                found = self._tokens[token] = self._new_fleet(environ, given)
            lost = self.lose > 0
            self.lose -= lost
        if lost:
            raise ConnectionAbortedError  # after the call went through
        return self._send(start_response, *found)

    def _new_fleet(
        self, environ: dict[str, Any], given: dict[str, str]
    ) -> tuple[str, list[tuple[str, str]], bytes]:
        start = "LaunchTemplateConfigs.1.Overrides."
        numbers = sorted({int(k[len(start) :].split(".")[0]) for k in given if k.startswith(start)})
        offers = [
            (n, given[f"{start}{n}.InstanceType"], self.zone_of(given[f"{start}{n}.SubnetId"]))
            for n in numbers
        ]
        refused = [
            (k, z, code)
            for _, k, z in offers
            if (code := self.full.get((k, z)) or self.full.get((k, "*")))
        ]
        open_ = [n for n, k, z in offers if (k, z) not in self.full and (k, "*") not in self.full]
        if not open_:
            rows = "".join(
                f"<item><errorCode>{c}</errorCode><errorMessage>in {z}</errorMessage></item>"
                for _, z, c in refused
            )
            text = (
                "<CreateFleetResponse"
                ' xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>'
                f"<fleetId>fleet-1</fleetId><errorSet>{rows}</errorSet><fleetInstanceSet/></CreateFleetResponse>"
            )
            return "200 OK", [("Content-Type", "text/xml")], text.encode()
        kept = {k: v for k, v in given.items() if not k.startswith(start)}
        kept |= {
            k.replace(f"{start}{open_[0]}.", f"{start}1."): v
            for k, v in given.items()
            if k.startswith(f"{start}{open_[0]}.")
        }
        if self.twice > 0:
            self.twice -= 1
            kept["TargetCapacitySpecification.TotalTargetCapacity"] = "2"
        found = self._pass(environ, urlencode(kept).encode())
        made = set(re.findall(r"i-[0-9a-f]{8,17}", found[2].decode()))
        self.doubled += len(made) > 1
        for name in made:
            self._born.setdefault(name, time.time())
        return found

    def _without_young(self, body: bytes) -> bytes:
        text, now = body.decode(), time.time()
        for row in re.findall(
            r"<item>\s*<reservationId>.*?</instancesSet>.*?</item>|<item>\s*<ownerId>.*?</instancesSet>\s*</item>",
            text,
            re.S,
        ):
            names = re.findall(r"<instanceId>(i-[0-9a-f]+)</instanceId>", row)
            if any(now - self._born.get(n, 0.0) < self.late_s for n in names):
                text = text.replace(row, "")
        return text.encode()

    def _pass(
        self, environ: dict[str, Any], body: bytes
    ) -> tuple[str, list[tuple[str, str]], bytes]:
        """What moto answers."""
        said: list[Any] = []

        def begin(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            said[:] = [status, headers]

        inner = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        inner.pop("werkzeug.request", None)
        # Moto's S3 closes a file that another request for the same object reads
        with self._one_at_a_time:
            data = b"".join(self._moto(inner, begin))
        return (
            said[0],
            [(k, v) for k, v in said[1] if k.lower() not in ("content-length", "connection")],
            data,
        )

    @staticmethod
    def _send(
        start_response: Callable[..., Any], status: str, headers: list[tuple[str, str]], body: bytes
    ) -> Any:
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [body]

    # --- what a test looks at ---------------------------------------------------------------------

    @cache  # noqa: B019  there is one
    def client(self, service: str) -> Any:
        import boto3

        return boto3.session.Session().client(service, region_name=REGION, endpoint_url=self.url)

    @cache  # noqa: B019  there is one
    def _zones(self) -> dict[str, str]:
        from moto.ec2.models import ec2_backends

        rows = ec2_backends["123456789012"][REGION].describe_subnets()
        return {row.id: row.availability_zone for row in rows}

    def zone_of(self, subnet: str) -> str:
        return self._zones()[subnet]

    def instances(self) -> list[Any]:
        """All that EC2 has, however late it says so."""
        from moto.ec2.models import ec2_backends

        backend = ec2_backends["123456789012"][REGION]
        return [i for r in backend.reservations.values() for i in r.instances]

    def alive(self) -> list[str]:
        """The machines that cost something, by the names of their requests.

        One that is there twice twice.
        """
        rows = [i for i in self.instances() if i._state.name in ("pending", "running")]
        return sorted(
            next(t["value"] for t in i.get_tags() if t["key"] == "deepvm:machine") for i in rows
        )

    def asked(self) -> list[str]:
        return [action for _, action, _ in self.calls]

    def begin(self) -> None:
        """Nothing but what an account has that is set up for jobs."""
        self.reset()
        ec2, s3, iam = self.client("ec2"), self.client("s3"), self.client("iam")
        alive = [i.id for i in self.instances() if i._state.name != "terminated"]
        if alive:
            ec2.terminate_instances(InstanceIds=alive)
        names = [b["Name"] for b in s3.list_buckets()["Buckets"]]
        if BUCKET not in names:
            s3.create_bucket(Bucket=BUCKET)
        for row in s3.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
            s3.delete_object(Bucket=BUCKET, Key=row["Key"])
        for name in (
            (PROFILE, HEAD_PROFILE) if not iam.list_instance_profiles()["InstanceProfiles"] else ()
        ):
            iam.create_role(
                RoleName=name, AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17"})
            )
            iam.create_instance_profile(InstanceProfileName=name)
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
        for row in ec2.describe_launch_templates()["LaunchTemplates"]:
            ec2.delete_launch_template(LaunchTemplateId=row["LaunchTemplateId"])
        self.calls.clear()

    def objects(self) -> list[str]:
        return [
            o["Key"] for o in self.client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", ())
        ]

    def cloud(self, folder: Path, **more: Any) -> Ec2Cloud:
        settings = {
            "bucket": BUCKET,
            "ami": IMAGE,
            "anchor_ami": IMAGE,
            "controller_host": "127.0.0.1",
            **more,
        }
        return Ec2Cloud(folder, Ec2Settings(REGION, **settings))


def _action(environ: dict[str, Any], body: bytes) -> str:
    """What a request of S3 or IAM asks, in the words of IAM's actions."""
    if b"Action=" in body:
        return unquote_plus(parse_qs(body.decode())["Action"][0])
    method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
    if method == "GET" and "location" in query:
        return "GetBucketLocation"
    if method == "GET" and "list-type" in query:
        return "ListObjectsV2"
    if method == "POST" and query == "delete":
        return "DeleteObjects"
    return {"PUT": "PutObject", "GET": "GetObject", "DELETE": "DeleteObject"}.get(method, method)


def _error(code: str) -> tuple[str, list[tuple[str, str]], bytes]:
    status = {
        "RequestLimitExceeded": "503 Service Unavailable",
        "InternalError": "500 Internal Server Error",
    }
    text = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>on"
        " purpose</Message></Error></Errors></Response>"
    )
    return status.get(code, "400 Bad Request"), [("Content-Type", "text/xml")], text.encode()


@cache
def _server() -> FakeEc2:
    """One for all tests of a process: it takes seconds to start."""
    moto = pytest.importorskip("moto.server")
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    fake = FakeEc2(moto.DomainDispatcherApplication(create_backend_app))

    class Handler(MotoRequestHandler):  # type: ignore[misc,valid-type]
        def run_wsgi(self) -> None:
            """A reply that is dropped: the connection ends without a byte."""
            try:
                super().run_wsgi()
            except ConnectionAbortedError:
                self.close_connection = True

    server = make_server("127.0.0.1", 0, fake, True, request_handler=Handler)
    server.passthrough_errors = True
    fake.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    atexit.register(server.server_close)
    return fake


@contextmanager
def running() -> Iterator[FakeEc2]:
    """An account that is set up for jobs, and credentials for it in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        leaves_ring_1("a server of moto")
        fake = _server()
        patch.setenv("AWS_ENDPOINT_URL", fake.url)
        # boto3 tries again as often as ever, but does not wait for seconds in between.
        patch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.01)
        fake.begin()
        yield fake
        fake.begin()
