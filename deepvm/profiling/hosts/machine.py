"""Where a measurement was made, without saying whose machine it is."""

from __future__ import annotations

import importlib.util
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from deepvm.io.host_info import cores, machine_memory, processor

_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")


@dataclass(frozen=True)
class Machine:
    """What belongs to every measured number; no host name, no address.

    Attributes:
        processor: its name. cores: those this process may use.
        memory_bytes: the machine's, or less where a control group says so; None where the system does not tell.
        gpus: names of the GPUs that torch can use, in torch's order.
        torch: its version, "" where it is not installed. cuda: the release that torch was built for, "" without.
        kernel: name and release of the system.
        instance_type: the cloud's name of the type, "" unless the machine's firmware says it (EC2 on Nitro does).
    """

    processor: str
    cores: int
    memory_bytes: int | None
    gpus: tuple[str, ...]
    torch: str
    cuda: str
    kernel: str
    instance_type: str

    def document(self) -> dict[str, object]:
        """The same as JSON has it, ``machine`` of every measurement."""
        return asdict(self) | {"gpus": list(self.gpus)}


def describe(root: Path = Path("/")) -> Machine:
    """This machine. Loads torch where it is installed; ``root`` is for tests."""
    torch, cuda, gpus = _torch()
    return Machine(
        processor=processor(),
        cores=cores(),
        memory_bytes=machine_memory(),
        gpus=gpus,
        torch=torch,
        cuda=cuda,
        kernel=f"{platform.system()} {platform.release()}",
        instance_type=_instance_type(root),
    )


def _torch() -> tuple[str, str, tuple[str, ...]]:
    if importlib.util.find_spec("torch") is None:
        return "", "", ()
    import torch

    gpus = tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    return str(torch.__version__), torch.version.cuda or "", gpus


def _instance_type(root: Path) -> str:
    """From the firmware's tables: asking the metadata service would be a wait, and no use on other machines."""
    folder = root / "sys/devices/virtual/dmi/id"
    try:
        vendor, product = ((folder / name).read_text().strip() for name in ("sys_vendor", "product_name"))
    except (OSError, UnicodeDecodeError):
        return ""
    return product if vendor == "Amazon EC2" and _TYPE.fullmatch(product) else ""
