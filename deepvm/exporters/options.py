"""What only the user knows: options of exports, as on the command line."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, fields
from decimal import Decimal

from deepvm import __version__
from deepvm.core.units import to_decimal
from deepvm.errors import RequestError
from deepvm.io.own_package import OwnPackage

_PERSIST = re.compile(r"(s3|gs|az)://[^/]+(/.*)?|file:///.+")
# Characters without a meaning between the double quotes of a script
_PLAIN = re.compile(r"[\w.,:/@+=\[\]<>!~-]+", re.ASCII)
_GIT = re.compile(r"(https://\S+?\.git)(?:@([\w./-]+))?")
_NO_SCRIPT = frozenset({"python", "python3", "torchrun", "bash", "sh"})


@dataclass(frozen=True)
class Subnet:
    """``zone``: a zone of the plan, by id or name, or empty for any."""

    subnet: str
    zone: str = ""

    def __str__(self) -> str:
        return self.subnet

    @classmethod
    def parse(cls, text: str) -> Subnet:
        zone, separator, name = text.rpartition("=")
        if not name or (separator and not zone):
            allowed = "ZONE=SUBNET or SUBNET, such as use1-az4=subnet-0abc"
            raise RequestError("subnet", text, allowed)
        return cls(name, zone)


@dataclass(frozen=True)
class ExportOptions:
    """Every option may be left out.

    Attributes:
        image: of the VMs that train. memory_image: of the memory nodes, ``image`` by default.
        launch_template, memory_launch_template: names, as for the images.
        command: the training script and its arguments, as after ``torchrun``.
        code: where VMs fetch the script from.
        job: name of the training, for its checkpoints. persist: URL of a bucket or folder that
            keeps them for good.
        package: what pip installs deepvm from instead of ``own``, the deepvm that exports.
        max_price: limit of the whole cluster, $/h; by default the plan's price + 20 %.
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
        """Raise RequestError for text that is not safe in a script, or not usable."""
        for name in ("job", "persist", "package", "code"):
            if (text := getattr(self, name)) and not _PLAIN.fullmatch(text):
                allowed = "letters, digits and .,:/@+=[]<>!~_-, without blanks"
                raise RequestError(name, text, allowed)
        if self.persist and not _PERSIST.fullmatch(self.persist):
            allowed = "s3://bucket/prefix, gs://, az:// or file:///folder"
            raise RequestError("persist", self.persist, allowed)
        if self.words and self.words[0] in _NO_SCRIPT:
            allowed = (
                "the arguments of torchrun, such as 'train.py --epochs 3' or '-m package.train'"
            )
            raise RequestError("command", self.command, allowed)
        if self.max_price is not None:
            to_decimal(self.max_price, "max_price", unit="$/h")

    @property
    def words(self) -> tuple[str, ...]:
        """The command split as a shell would, without expansion."""
        try:
            return tuple(shlex.split(self.command))
        except ValueError as error:
            allowed = f"a command line with closed quotes ({error})"
            raise RequestError("command", self.command, allowed) from None

    @property
    def git(self) -> tuple[str, str] | None:
        """URL and ref of ``code``, if it is a repository; the ref may be empty."""
        match = _GIT.fullmatch(self.code)
        return match and (match[1], match[2] or "")

    @property
    def given(self) -> dict[str, str]:
        """The options that are set, as text."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "own"}
        return {
            name: ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            for name, value in values.items()
            if value
        }
