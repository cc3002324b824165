"""Requests to AWS, and failed ones as CloudErrors; boto3 is loaded with the first one."""

import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_EXCEPTION, wait
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, TypeVar

from deepvm.catalog.signals.fetching import run_in_daemons
from deepvm.catalog.signals.redaction import redact
from deepvm.errors import CloudError
from deepvm.io.user_dirs import read_data
from deepvm.records import dataclass

MAX_SKEW_S = 300.0  # AWS refuses requests whose time is further from its own

_IAM_PREFIX = {"service-quotas": "servicequotas"}

_TABLE: Any = read_data("aws/errors.json")
_WHY_OF_CODE = {code: why for why, codes in _TABLE["codes"].items() for code in codes}
_WHY_OF_EXCEPTION = {name: why for why, names in _TABLE["exceptions"].items() for name in names}
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ApiCall:
    """boto3's name of a service (``ec2``), AWS's of an operation (``DescribeInstances``)."""

    service: str
    operation: str
    region: str

    @property
    def what(self) -> str:
        return f"{self.service} {self.operation} in {self.region}"

    @property
    def action(self) -> str:
        return f"{_IAM_PREFIX.get(self.service, self.service)}:{self.operation}"

    def error(self, why: str, detail: str) -> CloudError:
        advice = _TABLE["advice"][why].format(action=self.action, region=self.region)
        return CloudError(self.what, why, redact(detail), advice)

    def timed_out(self, seconds: float) -> CloudError:
        return self.error("timeout", f"the answer was not complete after {seconds:.0f} s")


def cloud_error(error: BaseException, call: ApiCall) -> CloudError:
    """The error for what boto3 raised."""
    code = error_code(error)
    if not code:
        known = [_WHY_OF_EXCEPTION.get(kind.__name__) for kind in type(error).__mro__]
        why = next(filter(None, known), "reply")
        return call.error(why, str(error) or type(error).__name__)
    why = _WHY_OF_CODE.get(code.removeprefix("Client."), "reply")
    asked = getattr(error, "operation_name", call.operation)
    if why == "permission" and asked != call.operation:  # a role had to be assumed first
        why = "credentials"
    if why in ("credentials", "expired"):
        # AWS repeats what was signed, with the session token in it.
        return call.error(why, f"AWS refused {asked} ({code})")
    message = getattr(error, "response", {})["Error"].get("Message") or "no reason given"
    return call.error(why, f"AWS says {code}: {message}")


def error_code(error: BaseException) -> str:
    """The code of a refusal by AWS, empty for any other exception."""
    response: Any = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


class Aws:
    """The account of a profile. Thread-safe; nothing is loaded or sent before the first call."""

    at_once = 8
    attempts = 5  # of each request; boto3 waits up to 1, 2, 4 and 8 s in between
    connect_s, read_s = 5.0, 30.0  # for a connection, and between two pieces of an answer

    def __init__(self, profile: str = "", region: str = "", total_s: float = 180) -> None:
        self.profile = profile  # empty: boto3's default
        self._region = region  # where roles are assumed
        # For one answer with all pages: a peer that sends a byte now and then never hits read_s
        self._total_s = total_s
        self._clients: dict[tuple[str, str], Any] = {}
        self._session: Any = None
        self._credentials: Any = None
        self._lock = threading.Lock()

    def call(self, api_call: ApiCall, answers: Collection[str] = (), **parameters: Any) -> Any:
        """boto3's reply, or the code of a refusal among ``answers``. Raises CloudError."""

        def ask() -> Any:
            try:
                return getattr(self._client(api_call), _method(api_call))(**parameters)
            except Exception as error:
                if error_code(error) in answers:
                    return error_code(error)
                raise

        return self._in_time(api_call, ask)

    def pages(self, api_call: ApiCall, **parameters: Any) -> list[Any]:
        """The rows of all pages of a list, ``MaxResults`` in a page. Raises CloudError."""
        end = time.monotonic() + self._total_s
        size = parameters.pop("MaxResults", None)

        def ask() -> list[Any]:
            rows: list[Any] = []
            paginator = self._client(api_call).get_paginator(_method(api_call))
            key = paginator.result_keys[0].expression
            for page in paginator.paginate(PaginationConfig={"PageSize": size}, **parameters):
                # boto3 parses the web page of a proxy as an empty answer, which would look like the
                # end of the list.
                if not isinstance(page.get(key), list):
                    raise api_call.error("reply", f"a page of the answer holds no {key}")
                rows.extend(page[key])
                if time.monotonic() > end and page.get("NextToken"):
                    raise api_call.timed_out(self._total_s)
            return rows

        return self._in_time(api_call, ask)

    def _in_time(self, api_call: ApiCall, ask: Callable[[], _Result]) -> _Result:
        # After ``total_s`` its thread is abandoned
        (future,) = run_in_daemons(lambda _: ask(), [None], 1, f"aws-{api_call.operation}")
        if not wait([future], self._total_s).done:
            raise api_call.timed_out(self._total_s)
        try:
            return future.result()
        except CloudError:
            raise
        except Exception as error:  # credential sources and parsers may raise anything
            raise cloud_error(error, api_call) from None

    def each(self, ask: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """The answers for all items, in their order; the first failure is raised."""
        futures = run_in_daemons(ask, list(items), self.at_once, "aws")
        try:
            done = wait(futures, return_when=FIRST_EXCEPTION).done
            # If one has failed, ``result()`` of that one raises; the others may not be done.
            return [future.result() for future in futures if future in done]
        finally:
            for future in futures:
                future.cancel()

    def regions(self, region: str) -> tuple[str, ...]:
        """The regions that are enabled for the account, sorted; ``region`` is asked."""
        api_call = ApiCall("ec2", "DescribeRegions", region)
        rows = self.call(api_call).get("Regions") or ()
        names = sorted(row["RegionName"] for row in rows if row.get("RegionName"))
        if not names:
            raise api_call.error("reply", "the answer holds no region")
        return tuple(names)

    def _client(self, api_call: ApiCall) -> Any:
        key = api_call.service, api_call.region
        with self._lock:  # creating a client is not thread-safe in boto3
            if key not in self._clients:
                self._clients[key] = self._make_client(*key)
            return self._clients[key]

    def _make_client(self, service: str, region: str) -> Any:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import NoCredentialsError

        from deepvm import __version__

        if self._session is None:
            self._session = boto3.Session(
                profile_name=self.profile or None, region_name=self._region or None
            )
            self._credentials = self._session.get_credentials()
        if self._credentials is None:
            raise NoCredentialsError
        config = Config(
            # Not "adaptive": after one refusal it slows down all requests of a client for a minute.
            retries={"mode": "standard", "total_max_attempts": self.attempts},
            connect_timeout=self.connect_s,
            read_timeout=self.read_s,
            user_agent_extra=f"deepvm/{__version__}",
        )
        return self._session.client(service, region_name=region, config=config)


def _method(api_call: ApiCall) -> str:
    from botocore import xform_name

    return str(xform_name(api_call.operation))


def clock_skew_s(reply: Any) -> float | None:
    """Seconds by which the local clock is ahead of the date of boto3's reply, if it has one."""
    try:
        date = parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return time.time() - date.timestamp()


@lru_cache
def known_regions() -> frozenset[str]:
    """The regions in botocore's own tables; reads no settings and sends no request."""
    from botocore.loaders import create_loader
    from botocore.regions import EndpointResolver

    known = EndpointResolver(create_loader().load_data("endpoints"))
    partitions = known.get_available_partitions()
    return frozenset(r for p in partitions for r in known.get_available_endpoints("ec2", p))
