"""An AWS over HTTP: moto, with the services that it lacks answered from figures given here.

moto has no price list, no placement scores, one made-up spot price, and no quotas of EC2; so those
requests are answered in front of it, in the wire format of the real services. Everything else goes
to moto.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from support.process_starts import leaves_ring_1

EC2 = "http://ec2.amazonaws.com/doc/2016-11-15/"
# As moto names them
ZONES = {"us-east-1a": "use1-az6", "us-east-1b": "use1-az1", "us-east-1c": "use1-az2"}


@dataclass
class FakeAws:
    """What is answered, and what was asked.

    Attributes:
        on_demand: $/h by region and type. spot: changes of price by region, type and zone name:
            hours ago, $/h.
        quotas: vCPUs by code. scores: placement scores by zone id.
        asked: the actions of all requests, in order. denied: actions that are refused.
    """

    on_demand: dict[str, dict[str, str]] = field(default_factory=dict)
    spot: dict[str, dict[str, dict[str, list[tuple[float, str]]]]] = field(default_factory=dict)
    quotas: dict[str, float] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    url: str = ""

    def answer(self, action: str, region: str, given: dict[str, Any]) -> tuple[str, bytes] | None:
        """Content type and body, None for moto to answer."""
        made = {
            "GetProducts": self._products,
            "GetServiceQuota": self._quota,
            "GetSpotPlacementScores": self._scores,
            "DescribeSpotPriceHistory": self._history,
        }.get(action)
        return None if made is None else made(region, given)

    def _products(self, _: str, given: dict[str, Any]) -> tuple[str, bytes]:
        wanted = {f["Field"]: f["Value"] for f in given["Filters"]}
        names = sorted(self.on_demand.get(wanted["regionCode"], {}).items())
        start, size = int(given.get("NextToken") or 0), 3
        rows = [_product(n, p, wanted["regionCode"]) for n, p in names[start : start + size]]
        more = {"NextToken": str(start + size)} if start + size < len(names) else {}
        return _JSON, json.dumps({"FormatVersion": "aws_v1", "PriceList": rows} | more).encode()

    def _quota(self, _: str, given: dict[str, Any]) -> tuple[str, bytes]:
        code = given["QuotaCode"]
        return (
            _JSON,
            json.dumps(
                {"Quota": {"QuotaCode": code, "Value": self.quotas.get(code, 0.0)}}
            ).encode(),
        )

    def _scores(self, region: str, _: dict[str, Any]) -> tuple[str, bytes]:
        rows = [
            {"region": region, "availabilityZoneId": z, "score": str(s)}
            for z, s in self.scores.items()
        ]
        return _xml("GetSpotPlacementScores", "spotPlacementScoreSet", rows)

    def _history(self, region: str, given: dict[str, Any]) -> tuple[str, bytes]:
        """As the real one: the changes since StartTime, and the one that held at that moment."""
        now = datetime.now(timezone.utc)
        start = datetime.fromisoformat(
            given.get("StartTime", now.isoformat()).replace("Z", "+00:00")
        )
        wanted = {v for k, v in given.items() if k.startswith("InstanceType.")}
        rows = []
        for name, zones in self.spot.get(region, {}).items():
            for zone, changes in zones.items() if not wanted or name in wanted else ():
                points = sorted((now - timedelta(hours=ago), price) for ago, price in changes)
                held = [p for p in points if p[0] <= start][-1:]
                for moment, price in held + [p for p in points if p[0] > start]:
                    rows.append(
                        {
                            "availabilityZone": zone,
                            "instanceType": name,
                            "productDescription": "Linux/UNIX",
                            "spotPrice": price,
                            "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
                        }
                    )
        return _xml("DescribeSpotPriceHistory", "spotPriceHistorySet", rows)


_JSON = "application/x-amz-json-1.1"


def _product(name: str, price: str, region: str) -> str:
    sku = name.replace(".", "").upper()
    term = {
        "priceDimensions": {f"{sku}.D": {"unit": "Hrs", "pricePerUnit": {"USD": f"{price}0000"}}},
        "sku": sku,
    }
    attributes = {
        "instanceType": name,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
        "marketoption": "OnDemand",
        "operation": "RunInstances",
    }
    product = {"productFamily": "Compute Instance", "attributes": attributes, "sku": sku}
    return json.dumps({"product": product, "terms": {"OnDemand": {f"{sku}.T": term}}})


def _xml(action: str, name: str, rows: Sequence[dict[str, str]]) -> tuple[str, bytes]:
    items = "".join(
        f"<item>{''.join(f'<{k}>{escape(v)}</{k}>' for k, v in r.items())}</item>" for r in rows
    )
    body = (
        f"<{action}Response"
        f' xmlns="{EC2}"><requestId>r</requestId><{name}>{items}</{name}></{action}Response>'
    )
    return "text/xml", body.encode()


def _denied(action: str) -> tuple[str, bytes]:
    text = f"You are not authorized to perform: {action}"
    if action in ("GetProducts", "GetServiceQuota"):
        return _JSON, json.dumps({"__type": "AccessDeniedException", "Message": text}).encode()
    error = f"<Error><Code>UnauthorizedOperation</Code><Message>{text}</Message></Error>"
    return (
        "text/xml",
        f"<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>".encode(),
    )


@contextmanager
def serving(aws: FakeAws) -> Iterator[FakeAws]:
    """Answer requests on an address of this machine until the end of the block."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    leaves_ring_1("a server of moto")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = DomainDispatcherApplication(create_backend_app)

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        region = environ.get("HTTP_AUTHORIZATION", "").split("/")[2:3] or [""]
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        if target:
            action, given = target.rpartition(".")[2], json.loads(body or b"{}")
        else:
            given = {k: v[0] for k, v in parse_qs(body.decode("utf-8", "replace")).items()}
            action = given.get("Action", "")
        aws.asked.append(action)
        found = _denied(action) if action in aws.denied else aws.answer(action, region[0], given)
        if found is None:
            import io

            environ["wsgi.input"] = io.BytesIO(body)
            answered: Iterable[bytes] = moto(environ, start_response)
            return answered
        kind, data = found
        status = "400 Bad Request" if action in aws.denied and target else "200 OK"
        if action in aws.denied and not target:
            status = "403 Forbidden"
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(data)))])
        return [data]

    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    aws.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield aws
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
