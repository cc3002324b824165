"""What a host has, for documents, without its name or address; and how hosts are distinguished."""

import contextlib
import fcntl
import importlib.util
import platform
import re
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from deepvm.errors import RequestError
from deepvm.io.host_info import cores, machine_memory, processor

_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
_SIOCGIFADDR = 0x8915


class Machine(TypedDict):
    """A machine that was measured, as ``data/documents/profiling.json`` describes it."""

    processor: str
    cores: int
    memory_bytes: int | None
    gpus: list[str]
    torch: str
    cuda: str
    kernel: str
    instance_type: str


def describe(root: Path = Path("/")) -> Machine:
    """This machine; loads torch if installed."""
    version = ""
    cuda = ""
    gpus = []
    if importlib.util.find_spec("torch") is not None:
        import torch

        version = str(torch.__version__)
        cuda = torch.version.cuda or ""
        gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "processor": processor(),
        "cores": cores(),
        "memory_bytes": machine_memory(),
        "gpus": gpus,
        "torch": version,
        "cuda": cuda,
        "kernel": f"{platform.system()} {platform.release()}",
        "instance_type": _instance_type(root),
    }


def _instance_type(root: Path) -> str:
    # From the firmware's tables: other machines would wait in vain for the metadata service.
    folder = root / "sys/devices/virtual/dmi/id"
    try:
        vendor, product = (
            (folder / name).read_text().strip() for name in ("sys_vendor", "product_name")
        )
    except (OSError, UnicodeDecodeError):
        return ""
    if vendor == "Amazon EC2" and _TYPE.fullmatch(product):
        return product
    return ""


def own_addresses() -> dict[str, str]:
    """IPv4 addresses by network card, loopback last; empty if unknown."""
    found = {}
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # a card without an address
                reply = fcntl.ioctl(asker, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(reply[20:24])
    return dict(sorted(found.items(), key=lambda item: item[1].startswith("127.")))


def address_toward(host: str, port: int = 9) -> str:
    """This machine's address on the way to a host. Raises OSError: there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        # UDP: nothing is sent, the kernel only chooses a route.
        asker.connect((host, port))
        return str(asker.getsockname()[0])


def boot_id() -> str:
    """The same on two hosts only if they are one machine under one kernel; "" if unknown."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def one_machine(boots: Iterable[str], *, allowed: bool = True) -> bool:
    """Whether these :func:`boot_id` include a machine twice; RequestError unless ``allowed``."""
    known = [boot for boot in boots if boot]
    found = len(set(known)) < len(known)
    if found and not allowed:
        raise RequestError(
            "force_local",
            False,
            "this option, or --save over real hosts: these are one machine, which says nothing of"
            " VMs",
        )
    return found
