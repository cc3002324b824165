"""Calls to AWS and their errors. boto3 is loaded when something is asked.

Who asks what, and how the answers are read, is in :mod:`deepvm.catalog.clouds.aws.providers`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from queue import Empty
from typing import Any, TypeVar, cast

from deepvm.catalog.clouds.aws.credentials import profile_names
from deepvm.catalog.clouds.aws.errors import (
    Circumstances,
    Question,
    cloud_error,
    error_code,
    too_busy,
    too_slow,
    unusable,
)
from deepvm.catalog.clouds.aws.redaction import secrets_of
from deepvm.catalog.clouds.aws.regions import DEFAULT_REGION, known_regions
from deepvm.catalog.clouds.aws.throttling import Busy, Refusals, give_words
from deepvm.catalog.signals.daemon_pool import DaemonPool
from deepvm.errors import CloudError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Where botocore's credentials keep what must not be shown; reading the public properties could ask the network anew.
_SECRET_ATTRIBUTES = ("access_key", "secret_key", "token", "_access_key", "_secret_key", "_token")


_LOOK_S = 0.25
"""How often to check whether AWS only throttles."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for AWS.

    Attributes:
        connect_s, read_s: seconds for a connection, and between two pieces of an answer.
        attempts: how often each request is made at most.
        total_s: seconds for one answer with all its pages. A peer that sends a byte now and then resets the others.
        busy_s: seconds during which AWS, or a proxy, answers nothing but that it is asked too much.
    """

    connect_s: float = 5
    read_s: float = 30
    attempts: int = 6
    total_s: float = 180
    busy_s: float = 6


class Aws:
    """The account that a profile leads to. May be used by several threads at once.

    Nothing is loaded, read or sent before the first call.
    """

    def __init__(
        self,
        profile: str = "",
        region: str = "",
        *,
        patience: Patience | None = None,
        at_once: int = 8,
        clients: Mapping[str, Any] | None = None,
    ) -> None:
        """Remember whose account to ask.

        Args:
            profile: of the shared AWS files; empty: what boto3 finds by itself.
            region: where roles are assumed; each call names its own region.
            patience: how long to wait.
            at_once: how many requests one answer may have under way.
            clients: ready-made clients by service, used in every region; for tests.
        """
        self.profile, self._region = profile, region
        self._patience, self._at_once = patience or Patience(), at_once
        self._given = dict(clients or {})
        self._made: dict[tuple[str, str], Any] = {}
        self._busy: dict[tuple[str, str], Busy] = {}
        self._session: Any = None
        self._credentials: Any = None
        self._searched = False
        self._lock = threading.Lock()

    def call(self, question: Question, **parameters: Any) -> dict[str, Any]:
        """Ask once and return the reply as boto3 gives it.

        Args:
            question: whom to ask what.
            parameters: as in AWS's documentation.

        Raises:
            CloudError: no answer, or a refusal; says why and what to do.
        """
        return cast("dict[str, Any]", self.call_or_code(question, (), **parameters))

    def call_or_code(self, question: Question, codes: Collection[str], **parameters: Any) -> dict[str, Any] | str:
        """Ask once, where some refusals are answers: for these the code is returned (``NoSuchResourceException``).

        Args:
            question: whom to ask what.
            codes: the refusals that are answers.
            parameters: as in AWS's documentation.

        Raises:
            CloudError: no answer, or another refusal.
        """

        def ask() -> Any:
            client = self._client(question.service, question.region)
            return getattr(client, _method(question.operation))(**parameters)

        try:
            return cast("dict[str, Any]", self._in_time(question, ask))
        except CloudError:
            raise
        except Exception as error:  # credential sources and parsers of replies raise anything
            if error_code(error) in codes:
                return error_code(error)
            raise self._failure(error, question) from None

    def pages(self, question: Question, key: str, **parameters: Any) -> list[Any]:
        """Ask for all pages of a list; a page that fails costs the whole answer.

        Args:
            question: whom to ask what.
            key: where the list stands in each page. A page without it is none of AWS's: boto3 reads the web page of a
                proxy as an empty answer, which would pass for the end of the list.
            parameters: as in AWS's documentation; ``MaxResults`` is the size of a page.

        Raises:
            CloudError: no answer, not a whole one, or a refusal.
        """
        end = time.monotonic() + self._patience.total_s
        size = parameters.pop("MaxResults", None)

        def ask() -> list[Any]:
            rows: list[Any] = []
            paginator = self._client(question.service, question.region).get_paginator(_method(question.operation))
            for page in paginator.paginate(PaginationConfig={"PageSize": size}, **parameters):
                if not isinstance(page.get(key), list):
                    raise unusable(question, f"a page of the answer holds no {key}")
                rows.extend(page[key])
                if time.monotonic() > end and page.get("NextToken"):
                    raise too_slow(question, self._patience.total_s)
            return rows

        try:
            return self._in_time(question, ask)
        except CloudError:
            raise
        except Exception as error:  # as above
            raise self._failure(error, question) from None

    def _in_time(self, question: Question, ask: Callable[[], _Result]) -> _Result:
        """What ``ask`` returns or raises, within the time limit; after that its thread is abandoned.

        Raises:
            CloudError: no answer within ``Patience.total_s``, or nothing but refusals for ``Patience.busy_s``.
        """
        busy, call = self._busy_of(question.service, question.region), Refusals()

        def serve(_: None) -> _Result:
            busy.start(call)
            return ask()

        end = time.monotonic() + self._patience.total_s
        pool = DaemonPool(serve, [None], 1, f"aws-{question.operation}")
        while True:
            left = end - time.monotonic()
            try:
                done = pool.next(max(0.0, min(left, _LOOK_S)))
                break
            except Empty:
                # boto3 tries again, ever more slowly, for a minute; a few seconds tell as much.
                if busy.for_s(call) >= self._patience.busy_s:
                    raise too_busy(question, self._patience.busy_s) from None
                if left <= 0:
                    raise too_slow(question, self._patience.total_s) from None
        return done.result()

    def each(self, ask: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """The answers for all items in their order, asked for several at once; the first failure ends it.

        Args:
            ask: asks for one of them.
            items: what to ask for.
        """
        todo = list(items)
        with closing(DaemonPool(ask, todo, self._at_once, "aws")) as pool:
            found = {done.place: done.result() for done in (pool.next() for _ in todo)}
        return [found[place] for place in range(len(todo))]

    def regions(self) -> tuple[str, ...]:
        """The regions that are enabled for the account, sorted.

        Raises:
            CloudError: no answer, or a refusal.
        """
        question = Question("ec2", "DescribeRegions", self._region or DEFAULT_REGION)
        rows = self.call(question).get("Regions") or ()
        names = sorted(row["RegionName"] for row in rows if row.get("RegionName"))
        if not names:
            raise unusable(question, "the answer holds no region")
        return tuple(names)

    def _client(self, service: str, region: str) -> Any:
        if service in self._given:
            return self._given[service]
        with self._lock:  # sessions of boto3 are not safe while they make a client
            if (service, region) not in self._made:
                self._made[service, region] = self._make_client(service, region)
            return self._made[service, region]

    def _make_client(self, service: str, region: str) -> Any:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import CredentialRetrievalError, NoCredentialsError

        from deepvm import __version__

        if self._session is None:
            self._session = boto3.Session(profile_name=self.profile or None, region_name=self._region or None)
        if not self._searched:
            try:
                self._credentials, self._searched = self._session.get_credentials(), True
            except (OSError, ValueError, LookupError, TypeError) as error:
                # What a credential process starts or writes is parsed as it is.
                raise CredentialRetrievalError(provider="the profile", error_msg=type(error).__name__) from None
        if self._credentials is None:
            # boto3 would search again for each client, which takes seconds where it asks the machine's metadata.
            raise NoCredentialsError
        config = Config(
            retries={"mode": "adaptive", "total_max_attempts": self._patience.attempts},
            connect_timeout=self._patience.connect_s,
            read_timeout=self._patience.read_s,
            user_agent_extra=f"deepvm/{__version__}",
        )
        client = self._session.client(service, region_name=region, config=config)
        client.meta.events.register("before-parse", give_words)
        busy = self._busy_of(service, region)
        # Last: before that, boto3 may hold the request back, which is no waiting for an answer.
        client.meta.events.register_last("before-send", busy.send)
        client.meta.events.register("response-received", busy.hear)
        return client

    def _busy_of(self, service: str, region: str) -> Busy:
        return self._busy.setdefault((service, region), Busy())

    def _failure(self, error: Exception, question: Question) -> CloudError:
        kept = vars(self._credentials) if self._credentials is not None else {}
        known = (kept.get(name) for name in _SECRET_ATTRIBUTES)
        around = Circumstances(
            secrets=(*secrets_of(os.environ), *(value for value in known if isinstance(value, str) and value)),
            skew_s=clock_skew_s(getattr(error, "response", None)),
            profiles=profile_names(os.environ),
            regions=frozenset() if self._session is None else known_regions(question.service),
        )
        return cloud_error(error, replace(question, profile=self.profile), around)


def clock_skew_s(reply: Any) -> float | None:
    """Seconds by which the clock of this machine is ahead of AWS's, by the date that a reply carries; None without one.

    Args:
        reply: as boto3 gives it, or the ``response`` of its exception.
    """
    try:
        said = parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return time.time() - said.timestamp()


def _method(operation: str) -> str:
    from botocore import xform_name

    return str(xform_name(operation))
