"""The interface of an export: a plan in, the files of another tool out.

An export writes no secrets and reads no environment. What only the user knows (images, subnets, the training command)
comes as an option, or stands in the file as something that the other tool refuses until it is filled in.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import ClassVar

from deepvm.core.cluster.instances import Market, ZonePrice
from deepvm.core.cluster.plan import Plan, PlannedGroup
from deepvm.core.units import format_usd, to_decimal
from deepvm.errors import RequestError

COMMENT_WIDTH = 110
RENDEZVOUS_PORT = 29500
"""Rendezvous port of torchrun, PyTorch's default."""
JOIN_TIMEOUT_S = 3600
"""Seconds that torchrun's agents wait for missing VMs: PyTorch's 600 are less than a spot VM may take to come back."""

_MOST_OF_A_TAG = 256
_OUTSIDE_TAGS = re.compile(r"[^\w +\-=.:/@]")
_NO_SCRIPT = frozenset({"python", "python3", "torchrun", "bash", "sh"})


@dataclass(frozen=True)
class Subnet:
    """A subnet of the user's network. ``zone`` is a zone of the plan, by id or name, or empty for any."""

    subnet: str
    zone: str = ""


@dataclass(frozen=True)
class ExportOptions:
    """What only the user knows; everything may be left out.

    Attributes:
        image: image of the VMs that train. memory_image: of the memory nodes, ``image`` unless given.
        key_name: name of an SSH key pair that the cloud knows.
        subnets: subnets to start VMs in. security_groups: ids of security groups.
        launch_template: name of the launch template of the VMs that train. memory_launch_template: the same of the
            memory nodes, ``launch_template`` unless given.
        command: the training script and its arguments, as one types them behind ``torchrun``.
        max_price: the most that the whole cluster may cost, $/h; the plan's price and 20 % unless given.
    """

    image: str = ""
    memory_image: str = ""
    key_name: str = ""
    subnets: tuple[Subnet, ...] = ()
    security_groups: tuple[str, ...] = ()
    launch_template: str = ""
    memory_launch_template: str = ""
    command: str = ""
    max_price: Decimal | None = None

    def __post_init__(self) -> None:
        """Refuse text that no file can hold, a command that torchrun cannot start, and a price that is none.

        Raises:
            RequestError: naming the option.
        """
        texts = [(option_name(f.name), getattr(self, f.name)) for f in fields(self)]
        texts = [(name, value) for name, value in texts if isinstance(value, str)]
        texts += [("subnet", text) for s in self.subnets for text in (s.subnet, s.zone)]
        texts += [("security_group", text) for text in self.security_groups]
        for name, text in texts:
            if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
                raise RequestError(name, text, "text that UTF-8 can hold, without zero bytes")
        words = self.words
        if words and words[0] in _NO_SCRIPT:
            allowed = "what stands behind torchrun, such as 'train.py --epochs 3' or '-m package.train'"
            raise RequestError("command", self.command, allowed)
        if self.max_price is not None:
            to_decimal(self.max_price, "max_price", unit="$/h")

    @property
    def words(self) -> tuple[str, ...]:
        """The command as words, read as a shell reads quotes; nothing is expanded.

        Raises:
            RequestError: a quote or a backslash is left open.
        """
        try:
            return tuple(shlex.split(self.command))
        except ValueError as error:
            raise RequestError("command", self.command, f"a command line with closed quotes ({error})") from None

    def shown(self, name: str) -> str:
        """The value of an option by its name on the command line, for an error."""
        if name == "subnet":
            return ", ".join(s.subnet for s in self.subnets)
        return ", ".join(self.security_groups) if name == "security_group" else str(getattr(self, name))

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the options that are set, as on the command line."""
        return tuple(option_name(f.name) for f in fields(self) if getattr(self, f.name))


@dataclass(frozen=True)
class ExportFile:
    """One file. ``name`` has no folder; ``executable`` is for scripts."""

    name: str
    text: str
    executable: bool = False


@dataclass(frozen=True)
class Export:
    """The files that a plan becomes.

    Attributes:
        files: to be written together or not at all.
        notes: how to start it, what must be filled in, and what this engine cannot do; one sentence each.
    """

    files: tuple[ExportFile, ...]
    notes: tuple[str, ...] = ()


class Exporter(ABC):
    """How a plan is written for one other tool; add a file beside this one and a line to the registry.

    Class attributes:
        name: as on the command line. summary: one line for people.
        options: names of the options that it uses (:attr:`ExportOptions.given`); all others are refused.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    options: ClassVar[frozenset[str]]

    @abstractmethod
    def render(self, plan: Plan, options: ExportOptions) -> Export:
        """Make the files; pure, and only called with options that :attr:`options` names.

        Raises:
            RequestError: the plan needs an option that is missing, or has no use for one that is given.
        """


@dataclass(frozen=True)
class Place:
    """Where VMs may start.

    Attributes:
        zone: a zone of the plan, None when any will do. subnet: id of a subnet, empty for the default one.
    """

    zone: ZonePrice | None
    subnet: str = ""


def option_name(field: str) -> str:
    """The name of a field of :class:`ExportOptions` on the command line, where lists are given one by one."""
    return field.removesuffix("s") if field in ("subnets", "security_groups") else field


def places(plan: Plan, options: ExportOptions) -> tuple[Place, ...]:
    """Where the VMs of a plan may start, the zone to start in first, then by price.

    With subnets given, only these: a zone without one would mean the default network, where nobody expects VMs.

    Raises:
        RequestError: a subnet is in a zone that the plan does not have.
    """
    zones = sorted(plan.training.zones, key=lambda z: z.zone != plan.zone)
    if not options.subnets:
        return tuple(Place(z) for z in zones) or (Place(None),)
    found = []
    for given in options.subnets:
        zone = next((z for z in zones if given.zone and given.zone in (z.zone, z.name)), None)
        if given.zone and zone is None:
            allowed = ", ".join(map(str, zones)) or "none; leave the zone out: the plan has no zones"
            raise RequestError("subnet", f"{given.zone}={given.subnet}", f"zones of the plan: {allowed}")
        found.append(Place(zone, given.subnet))
    return tuple(sorted(found, key=lambda p: len(zones) if p.zone is None else zones.index(p.zone)))


def refuse_subnets_in(zone: ZonePrice, subnets: Sequence[Subnet], allowed: str) -> None:
    """Refuse subnets in a zone of the plan that was left out, by what left it out.

    Raises:
        RequestError: one of them is in that zone, by id or name.
    """
    for given in subnets:
        if given.zone and given.zone in (zone.zone, zone.name):
            raise RequestError("subnet", f"{given.zone}={given.subnet}", allowed)


def offers_note(plan: Plan, options: ExportOptions) -> tuple[str, ...]:
    """Where memory nodes can start, for a plan that names no zones: left alone, AWS may look for them elsewhere."""
    if plan.training.zones or options.subnets or not plan.memory or not plan.memory.offered_in:
        return ()
    zones = ", ".join(plan.memory.offered_in)
    return (f"{plan.memory.instance_type} is offered in {zones} only: name subnets there with --subnet",)


def refuse_memory_options(plan: Plan, options: ExportOptions, *names: str) -> None:
    """Refuse options about memory nodes for a plan without any.

    Raises:
        RequestError: naming the option.
    """
    for name in names:
        if getattr(options, name) and plan.memory is None:
            raise RequestError(name, getattr(options, name), f"nothing: {plan} has no memory nodes")


def prices(plan: Plan) -> str:
    """The price of a plan and of each of its VMs, as one sentence without a full stop."""
    single = [
        f"{format_usd(g.usd_per_hour)} for each {g.instance_type} ({g.market.value})"
        for g in plan.groups
        if g.usd_per_hour is not None
    ]
    return f"{format_usd(plan.usd_per_hour)} $/h" + (f": {', '.join(single)}" if single else "")


def dearest(plan: Plan) -> tuple[str, ...]:
    """What it costs in the dearest of several zones, where that is more; one sentence."""
    if plan.most_usd_per_hour <= plan.usd_per_hour:
        return ()
    return (f"In the dearest of its zones: {format_usd(plan.most_usd_per_hour)} $/h.",)


def origin(plan: Plan) -> str:
    """Which prices these are and of which day, in words."""
    source = plan.source
    kind = f" ({source.kind})" if source.kind else ""
    dated = f"as of {source.prices_as_of}" if source.prices_as_of else "undated"
    return ", ".join(part for part in (f"catalog {source.catalog or 'unnamed'}{kind}", plan.region, dated) if part)


def header(plan: Plan, limit: str) -> tuple[str, ...]:
    """What stands at the top of every export, one sentence each: the cluster, its price, and where that comes from.

    Args:
        plan: the cluster.
        limit: a sentence about what limits the prices of its spot VMs, if anything does.
    """
    lines = [
        f"{plan}; architecture {plan.architecture}, rank {plan.rank}.",
        f"Price: {prices(plan)}.",
        *dearest(plan),
        f"Prices: {origin(plan)}.",
    ]
    if plan.source.basis:
        lines.append(f"Spot prices: {plan.source.basis}.")
    if plan.source.source:
        lines.append(f"Source: {plan.source.source}")
    if any(g.market is Market.SPOT for g in plan.groups):
        lines.append(limit)
    lines += [f"Warning: {warning}." for warning in plan.warnings]
    return ("Made by `deepvm export` from a plan of `deepvm recommend`.", *lines)


def plan_tags(plan: Plan, group: PlannedGroup) -> dict[str, str]:
    """What the plan is and what it cost when it was made, as tags of VMs and fleets.

    No limit is among them: what nothing enforces must not look as if something did.
    """
    tags = {
        "Name": f"deepvm-{group.role}",
        "deepvm:plan": f"{plan} {plan.architecture} rank {plan.rank}",
        "deepvm:usd-per-hour": format_usd(plan.usd_per_hour),
        "deepvm:prices": origin(plan),
    }
    return {key: tag_value(value) for key, value in tags.items()}


def tag_value(text: str) -> str:
    """Text with only what AWS allows in the value of a tag, cut between words at 256 characters."""
    words = " ".join(_OUTSIDE_TAGS.sub(" ", text).split())
    if len(words) <= _MOST_OF_A_TAG:
        return words
    return words[:_MOST_OF_A_TAG].rpartition(" ")[0] or words[:_MOST_OF_A_TAG]


def spread_note(plan: Plan) -> str:
    """What starting VMs in several zones implies."""
    zone = plan.zone or plan.training.zones[0].zone
    return f"VMs may start in several zones, and traffic between zones costs money; --zone {zone} keeps them in one"


def comment(sentences: Sequence[str], prefix: str = "# ") -> str:
    """Comment lines, wrapped between words; nothing in a sentence can end the comment."""
    lines = []
    for sentence in sentences:
        # split() takes every kind of white space, line breaks among them: what is left cannot start a line.
        words = " ".join(sentence.split())
        options = {"width": COMMENT_WIDTH, "break_long_words": False, "break_on_hyphens": False}
        lines += textwrap.wrap(words, subsequent_indent="  ", **options) or [""]  # type: ignore[arg-type]
    return "".join(f"{prefix}{line}".rstrip() + "\n" for line in lines)
