"""What only the user knows: options of exports, as on the command line."""

import re
import shlex
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from deepvm import __version__
from deepvm.core.options import option
from deepvm.core.units import to_decimal
from deepvm.errors import RequestError
from deepvm.io.own_package import OwnPackage
from deepvm.records import dataclass, fields

_PERSIST = re.compile(r"(s3|gs|az)://[^/]+(/.*)?|file:///.+")
# Characters without a meaning between the double quotes of a script
_PLAIN = re.compile(r"[\w.,:/@+=\[\]<>!~-]+", re.ASCII)
_GIT = re.compile(r"(https://\S+?\.git)(?:@([\w./-]+))?")
_NO_SCRIPT = frozenset({"python", "python3", "torchrun", "bash", "sh"})


def _text(help: str, metavar: str) -> Any:
    return option("", help, metavar)


@dataclass(frozen=True)
class ExportOptions:
    """Every option may be left out; ``own``: the deepvm here; ``folder``: of the files, if any."""

    command: str = _text("Training script and its arguments, as after torchrun.", "TEXT")
    code: str = _text(
        "Archive or git URL from which the VMs fetch the script (not torchrun).", "URL"
    )
    image: str = _text("Image of the training VMs.", "AMI")
    memory_image: str = _text("Image of the memory nodes; default: --image.", "AMI")
    launch_template: str = _text("Launch template of the training VMs (ec2-fleet).", "NAME")
    memory_launch_template: str = _text("As --launch-template, of memory nodes.", "NAME")
    key_name: str = _text("SSH key pair.", "NAME")
    subnet: Sequence[str] = option([], "Only in these subnets; repeatable.", "[ZONE=]ID")
    security_group: Sequence[str] = option([], "Security group of all VMs; repeatable.", "ID")
    job: str = _text("Name of the training, for its checkpoints; default: training.", "NAME")
    persist: str = _text("Bucket or folder that keeps checkpoints for good.", "URL")
    package: str = _text("What pip installs on the VMs; default: this deepvm.", "TEXT")
    max_price: Decimal | None = option(
        None,
        "Price limit of all VMs, $/h (ec2-fleet, terraform); default: the plan's price + 20 %.",
        "USD",
    )
    own: OwnPackage = OwnPackage(f"=={__version__}")
    folder: str = ""

    def __post_init__(self) -> None:
        for subnet in self.subnet:
            if not subnet or subnet != subnet.strip("="):
                allowed = "ZONE=SUBNET or SUBNET, such as use1-az4=subnet-0abc"
                raise RequestError("subnet", subnet, allowed)
        if self.max_price is not None:
            limit = to_decimal(self.max_price, "max_price", unit="$/h")
            object.__setattr__(self, "max_price", limit)
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

    @property
    def words(self) -> tuple[str, ...]:
        try:
            return tuple(shlex.split(self.command))
        except ValueError as error:
            raise RequestError(
                "command", self.command, f"a command line with closed quotes ({error})"
            ) from None

    @property
    def git(self) -> tuple[str, str] | None:
        match = _GIT.fullmatch(self.code)
        return match and (match[1], match[2] or "")

    @property
    def given(self) -> dict[str, str]:
        outer = ("own", "folder")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in outer}
        return {
            name: ", ".join(value) if isinstance(value, (list, tuple)) else str(value)
            for name, value in values.items()
            if value
        }
