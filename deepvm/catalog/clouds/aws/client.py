"""Requests to AWS and their errors; boto3 is loaded with the first one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_EXCEPTION, wait
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, TypeVar

from deepvm.catalog.clouds.aws.errors import ApiCall, cloud_error, error_code
from deepvm.catalog.signals.daemon_pool import run_in_daemons
from deepvm.errors import CloudError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Aws:
    """The account of a profile. Thread-safe.

    Nothing is loaded, read or sent before the first call.
    """

    at_once = 8
    attempts = 5  # of each request; boto3 waits up to 1, 2, 4 and 8 s in between
    connect_s, read_s = 5.0, 30.0  # for a connection, and between two pieces of an answer

    def __init__(self, profile: str = "", region: str = "", total_s: float = 180) -> None:
        """``profile`` empty: boto3's default. ``region``: where roles are assumed.

        ``total_s`` is for one answer with all its pages: a peer that sends a byte now and then
        never hits ``read_s``.
        """
        self.profile = profile
        self._region = region
        self._total_s = total_s
        self._clients: dict[tuple[str, str], Any] = {}
        self._session: Any = None
        self._credentials: Any = None
        self._lock = threading.Lock()

    def call(self, api_call: ApiCall, answers: Collection[str] = (), **parameters: Any) -> Any:
        """The reply as boto3 gives it, or the code of an expected refusal (``answers``).

        Raises:
            CloudError: no answer, or another refusal.
        """

        def ask() -> Any:
            try:
                return getattr(self._client(api_call), _method(api_call))(**parameters)
            except Exception as error:
                if error_code(error) in answers:
                    return error_code(error)
                raise

        return self._in_time(api_call, ask)

    def pages(self, api_call: ApiCall, **parameters: Any) -> list[Any]:
        """The rows of all pages of a list; ``MaxResults`` is the size of a page.

        Raises:
            CloudError: a refusal, or any page is missing.
        """
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
                    raise api_call.unusable(f"a page of the answer holds no {key}")
                rows.extend(page[key])
                if time.monotonic() > end and page.get("NextToken"):
                    raise api_call.timed_out(self._total_s)
            return rows

        return self._in_time(api_call, ask)

    def _in_time(self, api_call: ApiCall, ask: Callable[[], _Result]) -> _Result:
        """What ``ask`` returns; its exceptions as CloudErrors.

        After ``total_s`` its thread is abandoned.
        """
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
        """The answers for all items, in their order.

        Asks several at once, and the first failure ends it.
        """
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
            raise api_call.unusable("the answer holds no region")
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

    resolver = EndpointResolver(create_loader().load_data("endpoints"))
    partitions = resolver.get_available_partitions()
    return frozenset(r for p in partitions for r in resolver.get_available_endpoints("ec2", p))
