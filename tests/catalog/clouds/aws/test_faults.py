"""Faults of the network and of AWS over real sockets: an error in time, never a hang, half an
answer or a secret.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest
from botocore.retries.standard import ExponentialBackoff
from support.aws_account import NOW, REGION
from support.http_server import QuietServer
from support.pace import soon

from deepvm.catalog.clouds.aws.client import Aws
from deepvm.catalog.clouds.aws.providers import aws_providers, history_provider, placement_provider
from deepvm.catalog.signals.fetching import answer_of
from deepvm.catalog.signals.signal import OFFERINGS, QUOTAS, SPECS, ZONES
from deepvm.errors import CloudError

pytestmark = pytest.mark.system  # servers that do not answer in time
SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED01",
    "AWS_SECRET_ACCESS_KEY": "planted+secret/key+value0123456789abcdef",
    "AWS_SESSION_TOKEN": "planted//session+token==IQoJb3JpZ2luX2Vj",
}
QUICK = dict(connect_s=0.3, read_s=0.3, attempts=1, total_s=20)


def patient(profile: str = "", **limits: float) -> Aws:
    """An account with other limits of time."""
    aws = Aws(profile, total_s=limits.pop("total_s", 180))
    vars(aws).update(limits)
    return aws


XML = '<?xml version="1.0" encoding="UTF-8"?>'


def refusal(code: str, message: str) -> str:
    return (
        f"{XML}<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        "<RequestID>0</RequestID></Response>"
    )


def zone_page(zone: str = "use1-az4", token: str = "") -> str:
    return (
        f"{XML}<DescribeInstanceTypeOfferingsResponse"
        ' xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        "<requestId>0</requestId><instanceTypeOfferingSet><item><instanceType>g4dn.xlarge</instanceType>"
        f"<locationType>availability-zone-id</locationType><location>{zone}</location></item>"
        f"</instanceTypeOfferingSet>{f'<nextToken>{token}</nextToken>' if token else ''}"
        "</DescribeInstanceTypeOfferingsResponse>"
    )


@pytest.fixture(autouse=True)
def planted(monkeypatch, tmp_path):
    """Secrets in the environment, and no files of the user's."""
    files = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    for name in (*files, "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@contextlib.contextmanager
def serving(monkeypatch, answer: Callable[[BaseHTTPRequestHandler, int], None]):
    """An endpoint that handles the n-th request in any way it likes."""
    count = [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            count[0] += 1
            answer(self, count[0])

        def log_message(self, *_):
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    try:
        yield count
    finally:
        server.shutdown()
        server.server_close()


def say(
    handler: BaseHTTPRequestHandler, body: str, status: int = 200, promised: int | None = None
) -> None:
    data = body.encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "text/xml")
    handler.send_header("Content-Length", str(len(data) if promised is None else promised))
    handler.end_headers()
    handler.wfile.write(data)
    handler.close_connection = True


def failure(aws: Aws, kind: str = OFFERINGS) -> CloudError:
    with pytest.raises(CloudError) as caught:
        aws_providers(aws)[kind].fetch(REGION, NOW)
    assert_clean(caught.value)
    return caught.value


def assert_clean(error: BaseException) -> None:
    shown = [str(error), repr(error), repr(vars(error)), repr(error.args)]
    assert error.__suppress_context__ or error.__context__ is None
    for value in SECRETS.values():
        assert not any(value in text for text in shown)


def test_an_answer_that_is_good(monkeypatch):
    """The instrument works: with this server, faults alone make the difference."""
    with serving(
        monkeypatch,
        lambda handler, n: say(handler, zone_page(f"use1-az{n}", "more" if n == 1 else "")),
    ):
        signal = aws_providers(patient(**QUICK))[OFFERINGS].fetch(REGION, NOW)
    assert signal.data == {"g4dn.xlarge": ["use1-az1", "use1-az2"]}
    assert not any(value in repr(signal) for value in SECRETS.values())


def test_a_stall_ends_in_time(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with soon(10):
            assert failure(patient(**QUICK)).why == "timeout"


def test_nobody_listens(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    found = failure(patient(**QUICK))
    assert found.why == "network"
    assert "AWS_ENDPOINT_URL" in found.advice


def test_a_server_without_tls(monkeypatch):
    with serving(monkeypatch, lambda handler, n: say(handler, "hello")):
        import os

        monkeypatch.setenv(
            "AWS_ENDPOINT_URL", os.environ["AWS_ENDPOINT_URL"].replace("http:", "https:")
        )
        found = failure(patient(**QUICK))
    assert found.why == "network"
    assert "AWS_CA_BUNDLE" in found.advice


def test_a_proxy_that_does_not_answer(monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://joe:pr0xy-passw0rd@127.0.0.1:9")
    found = failure(patient(**QUICK))
    assert found.why == "network"
    assert "pr0xy-passw0rd" not in repr(vars(found))


def test_throttling_is_waited_out(monkeypatch):
    def answer(handler, n):
        if n == 1:
            say(handler, refusal("RequestLimitExceeded", "Request limit exceeded."), 503)
        else:
            say(handler, zone_page())

    with serving(monkeypatch, answer) as count:
        aws = patient(connect_s=1, read_s=1, attempts=3)
        assert aws_providers(aws)[OFFERINGS].fetch(REGION, NOW).data
    assert count[0] == 2


def test_throttling_without_end(monkeypatch):
    with serving(
        monkeypatch, lambda handler, n: say(handler, refusal("RequestLimitExceeded", "x"), 503)
    ) as count:
        assert failure(patient(connect_s=1, read_s=1, attempts=2)).why == "throttled"
    assert count[0] == 2


def test_the_second_page_breaks_off(monkeypatch):
    def answer(handler, n):
        if n == 1:
            say(handler, zone_page(token="2"))
        else:
            say(handler, zone_page("use1-az6")[:-60], promised=5000)

    with serving(monkeypatch, answer) as count:
        assert failure(patient(**QUICK)).why in ("network", "reply")
    assert count[0] == 2


@pytest.mark.parametrize(
    "page", ["<html><body><h1>Proxy error</h1></body></html>", f"{XML}<Response/>"]
)
def test_a_later_page_that_is_not_awss_is_not_the_end_of_the_list(monkeypatch, page):
    def answer(handler, number):
        say(handler, zone_page(token="more") if number == 1 else page)

    with serving(monkeypatch, answer) as count:
        error = failure(patient(**QUICK))
    assert (error.why, count[0]) == ("reply", 2)
    assert "InstanceTypeOfferings" in error.detail


def test_a_reply_without_its_value_is_not_the_default_quota(monkeypatch):
    """Somebody who may run 512 vCPUs must not be told 0, because a proxy answered one request."""

    def answer(handler, number):
        asked = handler.headers["X-Amz-Target"]
        default = '{"Quota": {"QuotaCode": "x", "Value": 0}}'
        say(
            handler,
            default if asked.endswith("GetAWSDefaultServiceQuota") else "<html>proxy error</html>",
        )

    with serving(monkeypatch, answer):
        error = failure(patient(**QUICK), QUOTAS)
    assert error.why == "reply" and "no value of quota" in error.detail


def test_a_trickle_ends_in_time(monkeypatch):
    """Each byte starts the time between bytes anew."""

    def answer(handler, number):
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(200):
                handler.wfile.write(b" ")
                time.sleep(0.1)

    with serving(monkeypatch, answer), soon(5):
        error = failure(patient(connect_s=1, read_s=1, attempts=1, total_s=1))
    assert error.why == "timeout"


def test_a_page_that_names_itself_as_the_next(monkeypatch):
    with serving(monkeypatch, lambda handler, n: say(handler, zone_page(token="again"))):
        assert failure(patient(**QUICK)).why == "reply"


@pytest.mark.parametrize(
    "body", ["", "<html><body>Sign in to the hotel's network</body></html>", "{}", "<unclosed"]
)
def test_answers_that_are_not_awss(monkeypatch, body):
    with serving(monkeypatch, lambda handler, n: say(handler, body)):
        assert failure(patient(**QUICK)).why in ("reply", "network")


def test_a_web_page_in_place_of_a_refusal(monkeypatch):
    page = "<html><h1>Blocked</h1>" + "<p>by the firewall</p>" * 500 + "</html>"
    with serving(monkeypatch, lambda handler, n: say(handler, page, 403)):
        found = failure(patient(**QUICK))
    assert found.why in ("reply", "network")
    assert len(str(found)) < 600


def test_a_refusal_that_repeats_the_secrets(monkeypatch):
    """AWS repeats the string that it signed, with the session's token in it."""
    secrets = " ".join(SECRETS.values())

    def answer(handler, n):
        message = f"The Canonical String should have been x-amz-security-token:{secrets}"
        say(handler, refusal("SignatureDoesNotMatch", message), 403)

    with serving(monkeypatch, answer):
        found = failure(patient(**QUICK))
    assert found.why == "credentials"


def test_an_expired_token(monkeypatch):
    with serving(
        monkeypatch,
        lambda handler, n: say(handler, refusal("RequestExpired", "Request has expired."), 400),
    ):
        assert failure(patient(**QUICK)).why == "expired"


def test_a_missing_permission(monkeypatch):
    message = "You are not authorized. Encoded authorization failure message: " + "secret" * 400
    with serving(
        monkeypatch, lambda handler, n: say(handler, refusal("UnauthorizedOperation", message), 403)
    ):
        found = failure(patient(**QUICK), SPECS)
    assert found.why == "permission"
    assert "allow ec2:DescribeInstanceTypes; 'deepvm doctor --iam'" in found.advice
    assert "secretsecret" not in str(found)


class TestCredentials:
    @pytest.fixture(autouse=True)
    def nothing(self, monkeypatch, planted):
        for name in SECRETS:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def test_none(self):
        found = failure(patient(**QUICK))
        assert found.why == "credentials"
        assert "aws configure" in found.advice

    def test_none_is_found_out_once(self, monkeypatch):
        aws = patient(**QUICK)
        failure(aws)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "too late")
        assert failure(aws, ZONES).why == "credentials"

    def test_half_a_key(self, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRETS["AWS_ACCESS_KEY_ID"])
        found = failure(patient(**QUICK))
        assert found.why == "credentials"
        assert "AWS_SECRET_ACCESS_KEY" in found.detail

    def test_an_unknown_profile(self, tmp_path):
        (tmp_path / ".aws").mkdir()
        found = failure(patient("wrok", **QUICK))
        assert found.why == "credentials"
        assert "profile (wrok) could not be found" in found.detail

    def test_a_broken_file(self, tmp_path):
        (tmp_path / ".aws").mkdir()
        (tmp_path / ".aws" / "credentials").write_text(
            "aws_secret_access_key = planted-planted\n[default\n"
        )
        found = failure(patient(**QUICK))
        assert found.why == "credentials"
        assert str(tmp_path / ".aws" / "credentials") in found.detail
        assert "planted-planted" not in repr(vars(found))


def test_no_provider_shows_a_secret_whatever_happens(monkeypatch):
    """Every provider against a server that answers everything with the secrets, over and over."""
    words = refusal("Anything", " ".join(SECRETS.values()) * 3)
    with serving(monkeypatch, lambda handler, n: say(handler, words, 400)):
        aws = patient(**QUICK)
        others = [history_provider(aws, 3), placement_provider(aws, ["a"], 1)]
        for one in [*aws_providers(aws).values(), *others]:
            with pytest.raises(CloudError) as caught:
                one.fetch(REGION, NOW)
            assert_clean(caught.value)


CALM = dict(connect_s=10, read_s=20, attempts=1)  # no second try, and time for a busy machine


def test_a_service_that_only_refuses_is_given_up_soon(monkeypatch):
    """boto3 waits between attempts, and "adaptive" retries would hold back each for up to 2 s."""
    waited, wait = [], ExponentialBackoff.delay_amount
    monkeypatch.setattr(
        ExponentialBackoff, "delay_amount", lambda *given: waited.append(wait(*given)) or 0.01
    )
    words = refusal("RequestLimitExceeded", "x")
    with serving(monkeypatch, lambda handler, n: say(handler, words, 503)) as count, soon(5):
        assert failure(Aws()).why == "throttled"
    assert count[0] == len(waited) + 1 == 5
    assert sum(waited) <= 1 + 2 + 4 + 8


def test_words_of_awss_stay_as_they_are(monkeypatch):
    with serving(
        monkeypatch, lambda handler, n: say(handler, refusal("Unavailable", "back soon"), 503)
    ):
        found = failure(patient(**QUICK))
    assert (found.why, found.detail) == ("reply", "AWS says Unavailable: back soon")


# Whatever a proxy, or a mistake of AWS, puts in the place of an answer

SHAPES = [
    *(
        "[]",
        "[1, 2]",
        "null",
        "true",
        "17",
        '"text"',
        "{}",
        "<html><p>Sign in</p></html>",
        "",
        "\x00\xff",
    ),
    *(
        '{"Quota": []}',
        '{"Quota": "x"}',
        '{"Quota": {"Value": []}}',
        '{"Quota": {"Value": "many"}}',
    ),
    *(
        '{"Quota": {"Value": NaN}}',
        '{"Quota": {"Value": true}}',
        '{"Quota": {"Value": 1',
        '{"Quota": {"Value": 1e999}}',
    ),
    *('{"PriceList": {}}', '{"PriceList": [17, null]}', '{"PriceList": ["[]", "{"]}'),
    '{"PriceList": ["null"], "NextToken": 3}',
    *(f"{XML}<a/>", "<a><b></a>", f"{XML}<Response><zoneSet/></Response>"),
    *(zone_page()[:-90], zone_page().replace("i", "j")),
    f"{XML}<R><availabilityZoneInfo><item/></availabilityZoneInfo><regionInfo><item/></regionInfo></R>",
    f"{XML}<R><instanceTypeSet><item><vCpuInfo>x</vCpuInfo></item><item/></instanceTypeSet></R>",
    f"{XML}<R><instanceTypeSet><item><vCpuInfo><defaultVCpus>x</defaultVCpus></vCpuInfo></item></instanceTypeSet></R>",
    f"{XML}<R><spotPriceHistorySet><item/><item><spotPrice>x</spotPrice></item></spotPriceHistorySet></R>",
    f"{XML}<R><reservationSet><item><instancesSet><item/></instancesSet></item></reservationSet></R>",
    f"{XML}<R><spotPlacementScoreSet><item/></spotPlacementScoreSet></R>",
    f"{XML}<R>text<instanceTypeOfferingSet>text</instanceTypeOfferingSet></R>",
]


@pytest.mark.parametrize("status", [200, pytest.param(400, marks=pytest.mark.slow)])
def test_answers_of_any_shape_are_named_errors(monkeypatch, status):
    said, answered = [""], 0
    with serving(monkeypatch, lambda handler, n: say(handler, said[0], status)):
        aws = patient(**CALM)
        others = [history_provider(aws, 3), placement_provider(aws, ["a"], 1)]
        providers = {one.kind: one for one in [*aws_providers(aws).values(), *others]}
        for said[0] in SHAPES:
            for kind, provider in providers.items():
                answer = answer_of(provider, REGION, NOW)
                if not isinstance(answer, CloudError):
                    answered += 1
                    continue
                text = str(answer)
                assert "Attribute" not in text and "internal error" not in text, (said, kind)
                assert answer.why in ("reply", "network") and answer.advice
            with pytest.raises(CloudError) as caught:
                aws.regions(REGION)
            assert "object has no attribute" not in str(caught.value)
    # One of them is an answer, and one is history that has no price; everything else has to be
    # refused.
    assert answered <= (4 if status == 200 else 0)
