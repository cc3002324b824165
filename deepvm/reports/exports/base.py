"""The interface of an export, a plan in, the files of another tool out, and how they are written.

An export writes no secrets and reads no environment. What only the user knows (images, subnets, the
training command) comes as an option, or stands in the file as something that the other tool refuses
until it is filled in.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import textwrap
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from decimal import Decimal
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from deepvm import __version__
from deepvm.core.cluster.instances import Market, ZonePrice
from deepvm.core.cluster.plan import Plan, PlannedDisk, PlannedGroup
from deepvm.core.units import format_usd, to_decimal
from deepvm.errors import DataError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.own_package import OwnPackage

COMMENT_WIDTH = 110
RENDEZVOUS_PORT = 29500
"""Rendezvous port of torchrun, PyTorch's default."""
JOIN_TIMEOUT_S = 3600
"""How long torchrun's agents wait for missing VMs: a spot VM may take longer than PyTorch's 600 s to come back."""

_OUTSIDE_TAGS = re.compile(r"[^\w +\-=.:/@]")
_PERSIST = re.compile(r"(s3|gs|az)://[^/]+(/.*)?|file:///.+")
# What stands in a script between double quotes as it is
_PLAIN = re.compile(r"[\w.,:/@+=\[\]<>!~-]+", re.ASCII)
_NO_SCRIPT = frozenset({"python", "python3", "torchrun", "bash", "sh"})


@dataclass(frozen=True)
class Subnet:
    """A subnet of the user's network.

    ``zone`` is a zone of the plan, by id or name, or empty for any.
    """

    subnet: str
    zone: str = ""

    def __str__(self) -> str:
        """Its id."""
        return self.subnet


@dataclass(frozen=True)
class ExportOptions:
    """What only the user knows, as on the command line; every option may be left out.

    Attributes:
        image: of the VMs that train. memory_image: of the memory nodes, ``image`` unless given.
        key_name: of an SSH key pair that the cloud knows. subnet, security_group: any number of
            them.
        launch_template: name of that of the VMs that train. memory_launch_template: of the memory
            nodes, if another.
        command: the training script and its arguments, as after ``torchrun``.
        max_price: the most that the whole cluster may cost, $/h; the plan's price + 20 % unless
            given.
        job: name of the training, for its checkpoints. persist: URL of a bucket or folder that
            keeps them for good.
        package: what pip installs deepvm from, in the place of ``own``, the one that makes the
            export.
        code: where VMs that start the training themselves fetch it from.
    """

    image: str = ""
    memory_image: str = ""
    key_name: str = ""
    subnet: tuple[Subnet, ...] = ()
    security_group: tuple[str, ...] = ()
    launch_template: str = ""
    memory_launch_template: str = ""
    command: str = ""
    max_price: Decimal | None = None
    job: str = ""
    persist: str = ""
    package: str = ""
    code: str = ""
    own: OwnPackage = OwnPackage(f"=={__version__}")

    def __post_init__(self) -> None:
        """Raise RequestError for text that no file can hold, a command that torchrun cannot start, or no price."""
        texts = [
            (f.name, text) for f in fields(self) if isinstance(text := getattr(self, f.name), str)
        ]
        texts += [("subnet", text) for s in self.subnet for text in (s.subnet, s.zone)]
        texts += [("security_group", text) for text in self.security_group]
        for name, text in texts:
            if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
                raise RequestError(name, text, "text that UTF-8 can hold, without zero bytes")
        for name in ("job", "persist", "package", "code"):
            if (text := getattr(self, name)) and not _PLAIN.fullmatch(text):
                raise RequestError(
                    name, text, "letters, digits and .,:/@+=[]<>!~_-, without blanks"
                )
        if self.persist and not _PERSIST.fullmatch(self.persist):
            raise RequestError(
                "persist", self.persist, "s3://bucket/prefix, gs://, az:// or file:///folder"
            )
        words = self.words
        if words and words[0] in _NO_SCRIPT:
            allowed = (
                "the arguments of torchrun, such as 'train.py --epochs 3' or '-m package.train'"
            )
            raise RequestError("command", self.command, allowed)
        if self.max_price is not None:
            to_decimal(self.max_price, "max_price", unit="$/h")

    @property
    def words(self) -> tuple[str, ...]:
        """The command split as a shell would, without expansion.

        RequestError if a quote is left open.
        """
        try:
            return tuple(shlex.split(self.command))
        except ValueError as error:
            raise RequestError(
                "command", self.command, f"a command line with closed quotes ({error})"
            ) from None

    @property
    def given(self) -> dict[str, str]:
        """The options that are set; ``own`` is none."""
        values = {
            f.name: value
            for f in fields(self)
            if f.name != "own" and (value := getattr(self, f.name))
        }
        return {
            name: ", ".join(map(str, v)) if isinstance(v, tuple) else str(v)
            for name, v in values.items()
        }


@dataclass(frozen=True)
class ExportFile:
    """One file. ``name`` has no folder; ``executable`` is for scripts; ``data`` is all of a file that is no text."""

    name: str
    text: str
    executable: bool = False
    data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Export:
    """The files that a plan becomes.

    Attributes:
        files: to be written together or not at all.
        notes: how to start it, what must be filled in, and what this engine cannot do; one sentence
            each.
    """

    files: tuple[ExportFile, ...]
    notes: tuple[str, ...] = ()


class Exporter(Protocol):
    """How a plan is written for one other tool: a module beside this one, and a line in the registry."""

    @property
    def OPTIONS(self) -> frozenset[str]:
        """Names of the options that it uses (:attr:`ExportOptions.given`).

        All others are refused.
        """

    @property
    def CLOUDS(self) -> frozenset[str]:
        """The clouds whose plans it can write; empty: those of all."""

    def render(self, plan: Plan, options: ExportOptions) -> Export:
        """Make the files; pure.

        Raises:
            RequestError: the plan needs an option that is missing, or has no use for one that is
                given.
        """


def places(plan: Plan, options: ExportOptions) -> list[tuple[ZonePrice | None, str]]:
    """Where the VMs of a plan may start, the zone to start in first, then by price.

    Pairs of a zone, None when any will do, and the id of a subnet, empty for the default one. With
    subnets given, only
    these: a zone without one would mean the default network, where nobody expects VMs.

    Raises:
        RequestError: a subnet is in a zone that the plan does not have.
    """
    zones = sorted(plan.training.zones, key=lambda z: z.zone != plan.zone)
    if not options.subnet:
        return [(zone, "") for zone in zones] or [(None, "")]
    found: list[tuple[ZonePrice | None, str]] = []
    for given in options.subnet:
        zone = next((z for z in zones if given.zone and given.zone in (z.zone, z.name)), None)
        if given.zone and zone is None:
            allowed = (
                ", ".join(map(str, zones)) or "none; leave the zone out: the plan has no zones"
            )
            raise RequestError(
                "subnet", f"{given.zone}={given.subnet}", f"zones of the plan: {allowed}"
            )
        found.append((zone, given.subnet))
    return sorted(
        found, key=lambda place: len(zones) if place[0] is None else zones.index(place[0])
    )


def refuse_subnets_in(zone: ZonePrice, subnets: Sequence[Subnet], allowed: str) -> None:
    """Raise RequestError for subnets in a zone of the plan that was left out, by id or name."""
    for given in subnets:
        if given.zone and given.zone in (zone.zone, zone.name):
            raise RequestError("subnet", f"{given.zone}={given.subnet}", allowed)


def device_note(disk: PlannedDisk, what: str) -> str:
    """A launch template must name the device of a disk, which depends on the image."""
    return (
        f"{what} have the disk of their image; the plan counts {disk}: name it as block device in"
        " the launch template"
    )


def zone_notes(plan: Plan, options: ExportOptions, *, several: bool) -> list[str]:
    """What it means that VMs may start in several zones, or that a plan names none."""
    if several:
        zone = plan.zone or plan.training.zones[0].zone
        return [
            f"VMs may start in several zones, and traffic between zones costs money; --zone {zone}"
            " keeps them in one"
        ]
    if plan.training.zones or options.subnet or not plan.memory or not plan.memory.offered_in:
        return []
    # Left alone, AWS may look for memory nodes elsewhere.
    zones = ", ".join(plan.memory.offered_in)
    return [
        f"{plan.memory.instance_type} is offered in {zones} only: name subnets there with --subnet"
    ]


def origin(plan: Plan) -> str:
    """Which prices these are and of which day, in words."""
    source = plan.source
    kind = f" ({source.kind})" if source.kind else ""
    dated = f"as of {source.prices_as_of}" if source.prices_as_of else "undated"
    return ", ".join(
        part
        for part in (f"catalog {source.catalog or 'unnamed'}{kind}", plan.region, dated)
        if part
    )


def header(plan: Plan, limit: str) -> tuple[str, ...]:
    """What stands at the top of every export: the cluster, its price, and where that comes from, a sentence each.

    ``limit``: a sentence about what limits the prices of its spot VMs, if anything does.
    """
    single = [
        f"{format_usd(g.usd_per_hour)} for each {g.instance_type} ({g.market.value})"
        for g in plan.groups
        if g.usd_per_hour is not None
    ]
    lines = [
        f"{plan}; architecture {plan.architecture}, rank {plan.rank}.",
        f"Price: {format_usd(plan.usd_per_hour)} $/h{': ' if single else ''}{', '.join(single)}.",
    ]
    if plan.most_usd_per_hour > plan.usd_per_hour:
        lines.append(f"In the dearest of its zones: {format_usd(plan.most_usd_per_hour)} $/h.")
    lines.append(f"Prices: {origin(plan)}.")
    if plan.source.basis:
        lines.append(f"Spot prices: {plan.source.basis}.")
    if plan.source.source:
        lines.append(f"Source: {plan.source.source}")
    if any(g.market is Market.SPOT for g in plan.groups):
        lines.append(limit)
    lines += [f"Warning: {warning}." for warning in plan.warnings]
    return ("Made by `deepvm export` from a plan of `deepvm recommend`.", *lines)


def plan_tags(plan: Plan, group: PlannedGroup) -> dict[str, str]:
    """What the plan is and what it cost when it was made, as tags of VMs and fleets."""
    # No limit is among them: what nothing enforces must not look as if something did.
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
    return words if len(words) <= 256 else words[:256].rpartition(" ")[0] or words[:256]


def comment(sentences: Sequence[str], prefix: str = "# ") -> str:
    """Comment lines, wrapped between words; nothing in a sentence can end the comment."""
    lines = []
    for sentence in sentences:
        # split() takes every kind of white space, line breaks among them: what is left cannot start
        # a line.
        words = " ".join(sentence.split())
        wrapped = textwrap.wrap(
            words,
            COMMENT_WIDTH,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += wrapped or [""]
    return "".join(f"{prefix}{line}".rstrip() + "\n" for line in lines)


def write_export(export: Export, folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write all files of an export, or none, into a folder, which is made when it is missing.

    Returns their paths.

    ``force``: replace files that exist.

    Raises:
        RequestError: a file exists and ``force`` is not set. DataError: something cannot be
            written; nothing was.
    """
    paths = [folder / file.name for file in export.files]
    existing = [str(p) for p in paths if os.path.lexists(p)]
    if existing and not force:
        raise RequestError(
            "output_dir",
            str(folder),
            f"a folder without {', '.join(existing)}, or --force to replace",
        )
    with ExitStack() as undo:
        try:
            missing = list(takewhile(lambda parent: not parent.exists(), (folder, *folder.parents)))
            for parent in reversed(missing):
                parent.mkdir(exist_ok=True)
                undo.callback(_quietly, parent.rmdir)
            for path, file in zip(paths, export.files, strict=True):
                _write(path, file, undo)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            place = getattr(error, "filename", None) or folder
            raise DataError(
                f"{place}: cannot be written: {why}; nothing was changed, name another place"
            ) from None
        undo.pop_all()
    return tuple(paths)


def _write(path: Path, file: ExportFile, undo: ExitStack) -> None:
    if path.exists():
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(
                f"{path}: cannot be written: a folder or device has this name; nothing was changed"
            )
        undo.callback(_quietly, partial(path.chmod, stat.S_IMODE(status.st_mode)))
        undo.callback(_quietly, partial(write_bytes, path, path.read_bytes()))
    else:
        undo.callback(_quietly, partial(path.unlink, missing_ok=True))
    write_bytes(path, file.data or file.text.encode())
    if file.executable:
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode | (mode & 0o444) >> 2)  # executable for everybody who may read it


def _quietly(undo: Callable[[], object]) -> None:
    # The first error is the one to report; what cannot be put back is beyond help.
    with suppress(OSError, DataError):
        undo()
