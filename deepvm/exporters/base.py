"""What exporters share: the files that they make, and the templates that these are made from.

An export holds no secrets and reads no environment. What only the user knows comes as an option, or
stands in the file as something that the other tool refuses until it is filled in.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deepvm.core.cluster.instances import Market, ZonePrice
from deepvm.core.cluster.plan import ANCHOR, MEMORY, Plan, PlannedGroup
from deepvm.core.spelling import joined
from deepvm.core.units import format_usd
from deepvm.errors import RequestError
from deepvm.exporters.options import ExportOptions

TEMPLATES = [Path(__file__).parent / "templates"]
COMMENT_WIDTH = 110
TRAINING_OPTIONS = frozenset({"job", "package", "persist"})
"""Of every export that starts trainings: it installs deepvm, and starts memory nodes and agents.

No secret is in any file: whoever starts the machines makes the token.
"""
ROLES = (MEMORY, ANCHOR)
"""Of VMs that keep checkpoints in memory."""
_OUTSIDE_TAGS = re.compile(r"[^\w +\-=.:/@]")
_ODD_BREAKS = re.compile("[\r\x85\u2028\u2029\ufeff]")


@dataclass(frozen=True)
class ExportFile:
    """``name`` has no folder; ``data`` is the content of a file that is not text."""

    name: str
    text: str
    data: bytes = field(default=b"", repr=False)

    @property
    def executable(self) -> bool:
        return self.text.startswith("#!")


@dataclass(frozen=True)
class Export:
    """``notes``: how to start it, what to fill in, what the tool cannot do; one sentence each."""

    files: tuple[ExportFile, ...]
    notes: tuple[str, ...] = ()


class Exporter:
    """A plan for one tool. Its templates see it as ``export``, and ``plan`` and ``options``.

    Subclasses say which options they use (all others are refused) and which clouds they know (all
    if empty), and make the files. Their folder of templates may have ``notes.txt``: what to do with
    them, a sentence a line, and ``limit.txt``: what limits prices of spot VMs, if anything does.
    ``RENTS``: whether the tool starts VMs, or uses those that exist. ``SENDS_FILES``: its files are
    copied to the VMs, and so may be the wheel of deepvm.
    """

    FOLDER: ClassVar[str]
    OPTIONS: ClassVar[frozenset[str]] = frozenset()
    CLOUDS: ClassVar[frozenset[str]] = frozenset()
    RENTS: ClassVar[bool] = True
    SENDS_FILES: ClassVar[bool] = False

    def __init__(self, plan: Plan, options: ExportOptions) -> None:
        self.plan = plan
        self.options = options

    def files(self) -> Iterator[ExportFile]:
        """Raises RequestError if an option is missing or not usable with this plan."""
        raise NotImplementedError

    def export(self) -> Export:
        files = tuple(self.files())
        notes = self.text("notes.txt")
        return Export(files, tuple(filter(None, notes.splitlines())))

    def file(self, name: str, template: str = "", **values: Any) -> ExportFile:
        """A file made from the template of this name, or another one, of this exporter."""
        return ExportFile(name, self.text(f"{self.FOLDER}/{template or name}", **values))

    def text(self, template: str, **values: Any) -> str:
        values |= {"export": self, "plan": self.plan, "options": self.options}
        return environment().get_template(f"{template}.j2").render(values)

    def image(self, group: PlannedGroup) -> str:
        """The image of a group; empty if unknown, such as that of another CPU architecture."""
        if group.role != MEMORY:
            return self.options.image
        if self.plan.mixes_cpu_architectures:
            shared = ""
        else:
            shared = self.options.image
        return self.options.memory_image or shared

    @property
    def network(self) -> str:
        """The kind of network on which the predicted speed of several VMs rests."""
        from deepvm.catalog.published.hardware import interconnect

        if self.plan.training_count == 1:
            return ""
        return interconnect(self.plan.training.instance_type, None).kind

    @property
    def places(self) -> list[tuple[ZonePrice | None, str]]:
        """Pairs of a zone (None: any) and a subnet (empty: the default one) in which VMs may start.

        The zone to start in comes first, then by price. If subnets are given, only these: a zone
        without one would mean the default network, where no VMs are expected.
        """
        zones = sorted(self.plan.training.zones, key=lambda z: z.zone != self.plan.zone)
        if not self.options.subnet:
            return [(zone, "") for zone in zones] or [(None, "")]
        named = {name: zone for zone in zones for name in (zone.name, zone.zone)}
        places: list[tuple[ZonePrice | None, str]] = []
        for given in self.options.subnet:
            name, _, subnet = given.rpartition("=")
            if name and name not in named:
                none = "none; leave the zone out: the plan has no zones"
                allowed = f"zones of the plan: {', '.join(map(str, zones)) or none}"
                raise RequestError("subnet", given, allowed)
            places.append((named[name] if name else None, subnet))
        return sorted(places, key=lambda p: len(zones) if p[0] is None else zones.index(p[0]))

    def tags(self, group: PlannedGroup) -> dict[str, str]:
        """Tags of VMs and fleets. None is a limit: what nothing enforces must not look like one."""
        return {
            "Name": f"deepvm-{group.role}",
            "deepvm:plan": tag(f"{self.plan} {self.plan.architecture} rank {self.plan.rank}"),
            "deepvm:usd-per-hour": format_usd(self.plan.usd_per_hour),
            "deepvm:prices": tag(self.text("origin.txt")),
        }

    @property
    def keepers(self) -> PlannedGroup | None:
        """The group that keeps checkpoints in memory: the memory nodes, or else the anchors."""
        groups = {group.role: group for group in self.plan.groups}
        return next((groups[role] for role in ROLES if role in groups), None)

    @property
    def wheels(self) -> list[ExportFile]:
        """The wheel that VMs install if they can get the deepvm that exports in no other way."""
        own = self.options.own
        if not self.SENDS_FILES or not own.wheel or self.options.package:
            return []
        return [ExportFile(own.wheel_name, "", own.wheel)]

    @property
    def library(self) -> str:
        """The extra with the library of the bucket; empty for S3, which needs none."""
        scheme = self.options.persist.partition("://")[0]
        if scheme in ("gs", "az"):
            return scheme
        return ""

    def requirement(self, *, trains: bool = True, folder: str = "") -> str:
        """What pip installs, as bash's default of a variable.

        ``trains``: whether it is for trainers, not for a memory node. ``folder``: where VMs have
        the wheel, as bash reads it between double quotes.

        Raises:
            RequestError: a training is to start, and VMs can install nothing.
        """
        own = self.options.own
        extras = [self.library] if self.library else []
        if trains:
            extras.insert(0, "train")
        extra = f"[{','.join(extras)}]" if extras else ""
        source = self.options.package or own.requirement(extra)
        if not source and self.wheels:
            source = f"{folder}/{own.wheel_name}{extra}"
        if not source and self.options.command:
            allowed = (
                "with --command what pip installs on the VMs, which cannot have the deepvm that"
                f" runs here, of {own.place}: a release such as 'deepvm[train]==0.1.0', the URL of"
                " a wheel, or git+https://HOST/NAME.git@REF; or --to torchrun or skypilot, which"
                " send it"
            )
            raise RequestError("package", "", allowed)
        if source:
            return f"-{source}"
        return "?deepvm export --package says what to install, and DEEPVM_PACKAGE here"


@cache
def environment() -> Environment:
    """Templates, and filters that escape values of a plan or of the user for each format."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "amount": amount,
        "comment": comment,
        "hcl": hcl,
        "joined": joined,
        "json": to_json,
        "shell": shlex.join,
        "tag": tag,
        "usd": format_usd,
        "yaml": to_yaml,
    }
    environment.globals |= {"SPOT": Market.SPOT}
    return environment


def amount(usd: Decimal) -> str:
    """An amount as AWS reads and repeats it: no exponent, no zeros at the end."""
    return f"{usd.normalize():f}"


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON on one line, or on several, which start ``indent`` columns to the right."""
    if indent is None:
        return json.dumps(value)
    return json.dumps(value, indent=2).replace("\n", "\n" + " " * indent)


def hcl(value: str | dict[str, str], indent: int | None = None) -> str:
    """Text for Terraform, in JSON. The start of a template is escaped by doubling."""
    return to_json(value, indent).replace("${", "$${").replace("%{", "%%{")


def to_yaml(value: object) -> str:
    """A scalar in YAML; a script is a block."""
    import yaml

    style = None
    if isinstance(value, str) and _ODD_BREAKS.search(value):
        style = '"'  # YAML reads these as plain line breaks
    elif isinstance(value, str) and "\n" in value:
        style = "|"
    text = yaml.safe_dump(value, default_style=style, allow_unicode=True, width=1_000_000)
    return text.removesuffix("...\n").removesuffix("\n")


def comment(text: str) -> str:
    """Comment lines, one or more for each line of the text; nothing in it can end the comment."""
    return "".join(_commented(line) for line in text.removesuffix("\n").split("\n"))


def _commented(sentence: str) -> str:
    # split() takes every kind of white space, unusual line breaks too
    words = " ".join(sentence.split())
    lines: Sequence[str] = textwrap.wrap(
        words,
        COMMENT_WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "".join(f"# {line}".rstrip() + "\n" for line in lines or [""])


def tag(text: str) -> str:
    """Text with only what AWS allows in the value of a tag, cut between words at 256 characters."""
    words = " ".join(_OUTSIDE_TAGS.sub(" ", text).split())
    if len(words) <= 256:
        return words
    return words[:256].rpartition(" ")[0] or words[:256]
