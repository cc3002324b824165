"""Requests to AWS and their errors; boto3 is loaded with the first one."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, MutableMapping
from concurrent.futures import FIRST_EXCEPTION, wait
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, TypeVar
from xml.etree import ElementTree

from deepvm.catalog.clouds.aws.errors import NO_WORDS, ApiCall, cloud_error, error_code
from deepvm.catalog.signals.daemon_pool import run_in_daemons
from deepvm.catalog.signals.redaction import secrets_of
from deepvm.errors import CloudError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Where botocore's credentials keep secrets; reading the public properties could refresh them over
# the network.
_SECRET_ATTRIBUTES = ("access_key", "secret_key", "token", "_access_key", "_secret_key", "_token")

_REFUSED_XML = f"<Response><Errors><Error><Code>Throttling</Code><Message>{NO_WORDS}</Message></Error></Errors></Response>"
_REFUSED_JSON = json.dumps({"__type": "ThrottlingException", "message": NO_WORDS})


class Aws:
    """The account of a profile. Thread-safe.

    Nothing is loaded, read or sent before the first call.
    """

    at_once = 8
    attempts = 5  # of each request; boto3 waits up to 1, 2, 4 and 8 s in between
    connect_s, read_s = 5.0, 30.0  # for a connection, and between two pieces of an answer

    def __init__(self, profile: str = "", region: str = "", total_s: float = 180) -> None:
        """Remember the profile (empty: boto3's default), the region where roles are assumed, and the time limit.

        ``total_s`` is for one answer with all its pages: a peer that sends a byte now and then
        never hits ``read_s``.
        """
        self.profile, self._region, self._total_s = profile, region, total_s
        self._made: dict[tuple[str, str], Any] = {}
        self._session: Any = None
        self._credentials: Any = None
        self._lock = threading.Lock()

    def call(self, question: ApiCall, answers: Collection[str] = (), **parameters: Any) -> Any:
        """The reply as boto3 gives it, or the code of a refusal that is among ``answers``.

        Raises:
            CloudError: no answer, or another refusal.
        """

        def ask() -> Any:
            try:
                return getattr(self._client(question), _method(question))(**parameters)
            except Exception as error:
                if error_code(error) in answers:
                    return error_code(error)
                raise

        return self._in_time(question, ask)

    def pages(self, question: ApiCall, key: str, **parameters: Any) -> list[Any]:
        """The rows under ``key`` of all pages of a list; ``MaxResults`` is the size of a page.

        Raises:
            CloudError: a refusal, or any page is missing.
        """
        end = time.monotonic() + self._total_s
        size = parameters.pop("MaxResults", None)

        def ask() -> list[Any]:
            rows: list[Any] = []
            paginator = self._client(question).get_paginator(_method(question))
            for page in paginator.paginate(PaginationConfig={"PageSize": size}, **parameters):
                # boto3 reads the web page of a proxy as an empty answer, which would pass for the
                # end of the list.
                if not isinstance(page.get(key), list):
                    raise question.unusable(f"a page of the answer holds no {key}")
                rows.extend(page[key])
                if time.monotonic() > end and page.get("NextToken"):
                    raise question.timed_out(self._total_s)
            return rows

        return self._in_time(question, ask)

    def _in_time(self, question: ApiCall, ask: Callable[[], _Result]) -> _Result:
        """What ``ask`` returns; its exceptions as CloudErrors.

        After ``total_s`` its thread is abandoned.
        """
        (future,) = run_in_daemons(lambda _: ask(), [None], 1, f"aws-{question.operation}")
        if not wait([future], self._total_s).done:
            raise question.timed_out(self._total_s)
        try:
            return future.result()
        except CloudError:
            raise
        except Exception as error:  # credential sources and parsers may raise anything
            kept = vars(self._credentials) if self._credentials is not None else {}
            known = (kept.get(name) for name in _SECRET_ATTRIBUTES)
            raise cloud_error(
                error,
                question,
                profile=self.profile,
                secrets=(
                    *secrets_of(os.environ),
                    *(value for value in known if isinstance(value, str) and value),
                ),
                skew_s=clock_skew_s(getattr(error, "response", None)),
                regions=frozenset() if self._session is None else known_regions(),
            ) from None

    def each(self, ask: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """The answers for all items, in their order.

        Asks several at once, and the first failure ends it.
        """
        futures = run_in_daemons(ask, list(items), self.at_once, "aws")
        try:
            done = wait(futures, return_when=FIRST_EXCEPTION).done
            # All of them unless one has failed
            return [future.result() for future in futures if future in done]
        finally:
            for future in futures:
                future.cancel()

    def regions(self, region: str) -> tuple[str, ...]:
        """The regions that are enabled for the account, sorted; ``region`` is asked."""
        question = ApiCall("ec2", "DescribeRegions", region)
        names = sorted(
            row["RegionName"]
            for row in self.call(question).get("Regions") or ()
            if row.get("RegionName")
        )
        if not names:
            raise question.unusable("the answer holds no region")
        return tuple(names)

    def _client(self, question: ApiCall) -> Any:
        place = question.service, question.region
        with self._lock:  # boto3's sessions are not thread-safe while they make a client
            if place not in self._made:
                self._made[place] = self._make_client(*place)
            return self._made[place]

    def _make_client(self, service: str, region: str) -> Any:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import CredentialRetrievalError, NoCredentialsError

        from deepvm import __version__

        if self._session is None:
            session = boto3.Session(
                profile_name=self.profile or None, region_name=self._region or None
            )
            try:
                self._credentials = session.get_credentials()
            except (OSError, ValueError, LookupError, TypeError) as error:
                # botocore parses the output of a credential process unchecked.
                raise CredentialRetrievalError(
                    provider="the profile", error_msg=type(error).__name__
                ) from None
            self._session = session
        if self._credentials is None:
            # boto3 would search again for each client, for seconds where it asks the metadata
            # service.
            raise NoCredentialsError
        config = Config(
            # Not "adaptive": after one refusal it slows down all requests of a client for a minute.
            retries={"mode": "standard", "total_max_attempts": self.attempts},
            connect_timeout=self.connect_s,
            read_timeout=self.read_s,
            user_agent_extra=f"deepvm/{__version__}",
        )
        client = self._session.client(service, region_name=region, config=config)
        client.meta.events.register("before-parse", add_error_code)
        return client


def _method(question: ApiCall) -> str:
    from botocore import xform_name

    return str(xform_name(question.operation))


def add_error_code(
    operation_model: Any, response_dict: MutableMapping[str, Any], **_: object
) -> None:
    """Add the error code of throttling to a 429 or 503 without one, such as a proxy's web page, so that boto3 retries.

    A handler of boto3's event ``before-parse``; replaces the answer's ``body``.
    """
    if response_dict.get("status_code") not in (429, 503):
        return
    is_json = "json" in str(operation_model.service_model.metadata.get("protocol", ""))
    try:
        if is_json:
            said = json.loads(response_dict["body"])
            code = said.get("__type") or said.get("code")
        else:
            code = ElementTree.fromstring(response_dict["body"]).findtext(".//Error/Code")
    except (ValueError, TypeError, AttributeError, RecursionError, ElementTree.ParseError):
        code = None
    if not (isinstance(code, str) and code):
        response_dict["body"] = (_REFUSED_JSON if is_json else _REFUSED_XML).encode()


def clock_skew_s(reply: Any) -> float | None:
    """Seconds by which the local clock is ahead of the date of boto3's reply.

    None where it has none.
    """
    try:
        said = parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return time.time() - said.timestamp()


@lru_cache
def known_regions() -> frozenset[str]:
    """The regions in botocore's own tables; reads no settings and asks nobody."""
    from botocore.loaders import create_loader
    from botocore.regions import EndpointResolver

    resolver = EndpointResolver(create_loader().load_data("endpoints"))
    partitions = resolver.get_available_partitions()
    return frozenset(r for p in partitions for r in resolver.get_available_endpoints("ec2", p))
