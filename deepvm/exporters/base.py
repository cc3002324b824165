"""What exporters share: zones, templates, the files that they make, and how these are written."""
# An export holds no secrets and reads no environment. What only the user knows comes as an option,
# or stands in the file as something that the other tool refuses until it is filled in.

import json
import os
import re
import shlex
import shutil
import stat
import textwrap
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deepvm.core.cluster.instances import Market, ZonePrice
from deepvm.core.cluster.plan import ANCHOR, MEMORY, Plan, PlannedGroup
from deepvm.core.spelling import joined
from deepvm.core.units import format_usd
from deepvm.errors import DataError, RequestError
from deepvm.exporters.options import ExportOptions
from deepvm.io.atomic_write import write_bytes
from deepvm.io.safe_read import os_reason
from deepvm.records import dataclass, field

TEMPLATES = [Path(__file__).parent / "templates"]
COMMENT_WIDTH = 110
# Of every export that starts trainings: it installs deepvm, and starts memory nodes and agents. No
# secret is in any file: anyone who starts the machines makes the token
TRAINING_OPTIONS = frozenset({"job", "package", "persist"})
ROLES = (MEMORY, ANCHOR)  # Of VMs that keep checkpoints in memory
_OUTSIDE_TAGS = re.compile(r"[^\w +\-=.:/@]")
_BREAKS = re.compile("[\n\r\x85\u2028\u2029\ufeff]")
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
    """A plan for one tool; its templates see it as ``export``, and ``plan`` and ``options``."""

    # ``notes.txt`` in its folder: what to do with the files; ``limit.txt``: what limits prices of
    # spot VMs. ``RENTS``: whether the tool starts VMs. ``SENDS_FILES``: files, and the wheel of
    # deepvm, are copied to VMs.

    FOLDER: ClassVar[str]
    OPTIONS: ClassVar[frozenset[str]] = frozenset()
    CLOUDS: ClassVar[frozenset[str]] = frozenset()
    RENTS = True
    SENDS_FILES = False

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
        return ExportFile(name, self.text(f"{self.FOLDER}/{template or name}", **values))

    def text(self, template: str, **values: Any) -> str:
        values |= {"export": self, "plan": self.plan, "options": self.options}
        return environment().get_template(f"{template}.j2").render(values)

    def image(self, group: PlannedGroup) -> str:
        if group.role != MEMORY:
            return self.options.image
        if self.plan.mixes_cpu_architectures:
            return self.options.memory_image
        return self.options.memory_image or self.options.image

    @property
    def network(self) -> str:
        from deepvm.catalog.published.hardware import interconnect

        if self.plan.training_count == 1:
            return ""
        return interconnect(self.plan.training.instance_type, None).kind

    @property
    def best_network(self) -> bool:
        """Whether the files ask for the network of the GPUs."""
        return False

    @property
    def places(self) -> list[tuple[ZonePrice | None, str]]:
        """Pairs of a zone (None: any) and a subnet (empty: the default), by price."""
        # If subnets are given, only these: a zone without one would mean the default network.
        zones = sorted(self.plan.training.zones, key=lambda z: z.zone != self.plan.zone)
        if not self.options.subnet:
            return [(zone, "") for zone in zones] or [(None, "")]
        named = {name: zone for zone in zones for name in (zone.name, zone.zone)}
        places: list[tuple[ZonePrice | None, str]] = []
        for given in self.options.subnet:
            name, _, subnet = given.rpartition("=")
            if name and name not in named:
                none = "none; leave the zone out: the plan has no zones"
                raise RequestError(
                    "subnet", given, f"zones of the plan: {', '.join(map(str, zones)) or none}"
                )
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
        groups = {group.role: group for group in self.plan.groups}
        return next((groups[role] for role in ROLES if role in groups), None)

    @property
    def wheels(self) -> list[ExportFile]:
        own = self.options.own
        if not self.SENDS_FILES or not own.wheel or self.options.package:
            return []
        return [ExportFile(own.wheel_name, "", own.wheel)]

    @property
    def checkpoints(self) -> str:
        """Where checkpoints stay for good; may name variables of the shell."""
        return self.options.persist

    @property
    def library(self) -> str:
        scheme = self.checkpoints.partition("://")[0]
        if scheme in ("gs", "az"):
            return scheme
        return ""

    def requirement(self, *, trains: bool = True, folder: str = "") -> str:
        """What pip installs, as bash's default of a variable; ``folder``: of the wheel on VMs."""
        own = self.options.own
        extras = []
        if trains:
            extras.append("train")
        if self.library:
            extras.append(self.library)
        extra = ""
        if extras:
            extra = f"[{','.join(extras)}]"
        source = self.options.package or own.requirement(extra)
        if not source and self.wheels:
            source = f"{folder}/{own.wheel_name}{extra}"
        if not source and self.options.command:
            raise RequestError(
                "package",
                "",
                "with --command what pip installs on the VMs, which cannot have the deepvm that"
                f" runs here, of {own.place}: 'deepvm[train] @ git+https://HOST/NAME.git@REF', or"
                " the URL of a wheel; or --to torchrun or skypilot, which send it",
            )
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


def to_yaml(value: object, block: bool = False) -> str:
    """A scalar in YAML; text of several lines may be a block where its key is not indented."""
    import yaml

    style = None
    if isinstance(value, str) and _BREAKS.search(value):
        # In a block, YAML reads unusual line breaks as plain ones
        style = '"'
        if block and not _ODD_BREAKS.search(value):
            style = "|"
    text = yaml.safe_dump(value, default_style=style, allow_unicode=True, width=1_000_000)
    return text.removesuffix("...\n").removesuffix("\n")


def comment(text: str) -> str:
    """Comment lines, one or more for each line of the text; nothing in it can end the comment."""
    wrapper = textwrap.TextWrapper(
        COMMENT_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    lines: list[str] = []
    for sentence in text.removesuffix("\n").split("\n"):
        # split() takes every kind of white space, unusual line breaks too
        lines += wrapper.wrap(" ".join(sentence.split())) or [""]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def tag(text: str) -> str:
    """Text with only what AWS allows in the value of a tag, cut between words at 256 characters."""
    words = " ".join(_OUTSIDE_TAGS.sub(" ", text).split())
    if len(words) <= 256:
        return words
    return words[:256].rpartition(" ")[0] or words[:256]


def choose_zones(plan: Plan, names: Sequence[str], *, limited: bool) -> tuple[Plan, list[str]]:
    """The plan in the named zones, else in all that are sound and within its budget; and notes."""
    if names:
        return plan.in_zones(names), []
    notes = []
    sound = plan.sound()
    if plan.memory and sound != plan:
        reason = f"{plan.memory.instance_type} is not offered there"
        notes.append(f"left out: {_difference(plan, sound)}, because {reason}")
    if limited or sound.budget is None:
        return sound, notes
    cheap = sound.within_budget()
    if cheap != sound:
        reason = (
            f"there it would cost more than the ${format_usd(sound.budget)}/h that was asked for;"
            " --zone or --max-price takes it anyway"
        )
        notes.append(f"left out: {_difference(sound, cheap)}, because {reason}")
    return cheap, notes


def _difference(before: Plan, after: Plan) -> str:
    return ", ".join(str(z) for z in before.training.zones if z not in after.training.zones)


def write_export(export: Export, folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write all files, or none, into a folder, which is made when it is missing."""
    paths = tuple(folder / file.name for file in export.files)
    existing = [str(path) for path in paths if os.path.lexists(path)]
    if existing and not force:
        raise RequestError(
            "output_dir",
            str(folder),
            f"a folder without {', '.join(existing)}, or --force to replace",
        )
    try:
        # All is written before the folder exists, and on its file system: a full disk leaves
        # nothing behind, and os.replace does not work across file systems.
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
        with TemporaryDirectory(prefix=".deepvm-", dir=nearest) as staging:
            staged = [Path(staging) / file.name for file in export.files]
            for file, source, path in zip(export.files, staged, paths, strict=True):
                _stage(file, source, path)
            folder.mkdir(parents=True, exist_ok=True)
            for source, path in zip(staged, paths, strict=True):
                os.replace(source, path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder}: cannot be written: {os_reason(error)}; nothing was changed, name another"
            " folder"
        ) from None
    return paths


def _stage(file: ExportFile, staged: Path, path: Path) -> None:
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: a folder or device has this name")
    write_bytes(staged, file.data or file.text.encode())
    if path.exists():
        shutil.copymode(path, staged)
    if file.executable:
        mode = stat.S_IMODE(staged.stat().st_mode)
        staged.chmod(mode | (mode & 0o444) >> 2)  # executable for all who may read it
