"""An AWS account that answers from a script: each question is checked against AWS's own service
model.

Replies come from ``tests/recorded/aws``; they have the exact shape of the real service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from botocore.stub import Stubber

from deepvm.catalog.clouds.aws.client import ApiCall, Aws
from support.places import TESTS

FOLDER = TESTS / "recorded" / "aws"
NOW = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
REGION = "us-east-1"


def recorded(name: str) -> Any:
    """A recorded reply, or its pages; times as boto3 gives them."""

    def with_times(row: dict[str, Any]) -> dict[str, Any]:
        if "Timestamp" in row:
            row["Timestamp"] = datetime.fromisoformat(row["Timestamp"])
        return row

    return json.loads((FOLDER / f"{name}.json").read_text(), object_hook=with_times)


@dataclass(frozen=True)
class Step:
    """One question that must come next to a service, and its reply, or the code and words of its
    refusal.
    """

    service: str
    operation: str
    expected: dict[str, Any] | None
    reply: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    message: str = "no"
    status: int = 400
    headers: dict[str, str] = field(default_factory=dict)


def pages(
    service: str, operation: str, expected: dict[str, Any], replies: Sequence[dict[str, Any]]
) -> list[Step]:
    """The steps of a paginated answer: the token of each page must be asked for next."""
    steps, token = [], None
    for reply in replies:
        steps.append(
            Step(service, operation, expected | ({"NextToken": token} if token else {}), reply)
        )
        token = reply.get("NextToken")
    return steps


@lru_cache(maxsize=1)
def session() -> Any:
    import boto3

    return boto3.Session(
        aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
        aws_secret_access_key="not-a-secret",
        region_name=REGION,
    )


class _Scripted(Aws):
    at_once = 1  # questions come in the order of the script

    def __init__(self, clients: Mapping[str, Any]) -> None:
        super().__init__()
        self._clients = clients

    def _client(self, question: ApiCall) -> Any:
        return self._clients[question.service]


@dataclass
class Account:
    """``aws`` is what the code under test gets; ``done()`` makes sure that every step was asked
    for.
    """

    aws: Aws
    stubbers: list[Stubber]

    def done(self) -> None:
        for stubber in self.stubbers:
            stubber.assert_no_pending_responses()


def account(*steps: Step) -> Account:
    """An account that expects these questions, for each service in this order."""
    clients = {name: session().client(name) for name in {s.service for s in steps}}
    stubbers = {name: Stubber(client) for name, client in clients.items()}
    for step in steps:
        stubber = stubbers[step.service]
        if step.code:
            meta = {"HTTPHeaders": step.headers}
            stubber.add_client_error(
                step.operation,
                service_error_code=step.code,
                service_message=step.message,
                http_status_code=step.status,
                expected_params=step.expected,
                response_meta=meta,
            )
        else:
            stubber.add_response(step.operation, step.reply, step.expected)
    for stubber in stubbers.values():
        stubber.activate()
    return Account(_Scripted(clients), list(stubbers.values()))
