"""The parts of ``deepvm profile all``: measured in turn, kept in a folder, skipped when already there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from deepvm.cli.output import say
from deepvm.cli.parameters import opt, option_name
from deepvm.cli.profile import measure as o
from deepvm.cli.profile.measure import Models, Seconds, models_of, sizes_of
from deepvm.core.units import parse_bytes
from deepvm.errors import DataError, DeepVMError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.safe_read import read_text
from deepvm.io.times import format_time, parse_time

if TYPE_CHECKING:
    from deepvm.catalog.measured.entries import Entry
    from deepvm.profiling.hosts.launcher import Host, Launcher

SETTINGS, SETTINGS_VERSION = "settings.json", "deepvm.profile/1"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is measured, where and how: the options of ``deepvm profile all``."""

    hosts: Annotated[str, opt("Training VMs, comma-separated.", "NAMES")] = ""
    hosts_file: Annotated[str, opt("Or a file: one host per line.", "FILE")] = ""
    receiver: Annotated[str, opt("Memory node, to measure its saturation.", "HOST")] = ""
    instance_type: Annotated[
        str, opt("Type of the training VMs; default: this machine's (EC2 Nitro).", "TYPE")
    ] = ""
    receiver_type: Annotated[str, opt("Type of the memory node.", "TYPE")] = ""
    launcher: o.LauncherName = "ssh"
    python: o.PythonThere = ""
    workdir: o.Workdir = ""
    model: Models = field(default_factory=lambda: ["resnet50"])
    batch: Annotated[int, opt("Images per step and GPU.", "N")] = 128
    resolution: o.Resolution = 32
    device: o.Device = "auto"
    sizes: o.Sizes = ""
    repeats: Annotated[
        int, opt("Runs of each size, and pushes for each number of senders.", "N")
    ] = 3
    windows: Annotated[int, opt("Timed windows, of eFLOPS and of each scaling run.", "N")] = 5
    seconds: Seconds = 2.0
    warmup: o.WarmUp = 10
    steps: o.Steps = 20
    checkpoint_size: o.CheckpointSize = "300MB"
    transport: o.Transport = "tcp"

    @cached_property
    def where(self) -> tuple[Host, ...]:
        """The training VMs; none for this machine."""
        return (
            o.hosts_of("hosts", self.hosts, self.hosts_file)
            if self.hosts or self.hosts_file
            else ()
        )

    @cached_property
    def there(self) -> Launcher:
        """How commands get to hosts."""
        from deepvm.profiling.hosts.launcher import Launcher

        return Launcher.parse(self.launcher, self.python, self.workdir)


@dataclass(frozen=True)
class Part:
    """One measurement, with a document as its result.

    Attributes:
        title: names it, and its file.
        settings: a file measured with other ones is refused.
        hosts: where.
        work: measures it; returns the document, and what is missing in it.
    """

    title: str
    settings: Mapping[str, Any]
    hosts: tuple[str, ...]
    work: Callable[[], tuple[Mapping[str, Any], list[str]]]


class Folder:
    """Keeps documents, with a record of the settings that each was measured with."""

    def __init__(self, path: Path) -> None:
        """Read the record. Raises DataError."""
        self.path = path
        self._parts: dict[str, Any] = {}
        if (path / SETTINGS).exists():
            record = _read(path / SETTINGS)
            if record.get("schema_version") != SETTINGS_VERSION:
                raise DataError(
                    f"{path / SETTINGS}: not a record of this deepvm; name another --out folder"
                )
            self._parts = dict(record["parts"])

    def file(self, title: str) -> Path:
        """The file of a part."""
        return self.path / f"{title}.json"

    def check(self, part: Part) -> None:
        """Refuse a document measured with other settings, naming them."""
        file, before = self.file(part.title), self._parts.get(part.title, {}).get("settings", {})
        if not file.exists():
            return
        differ = [
            f"{key} {before.get(key)!r} there, {now!r} here"
            for key, now in part.settings.items()
            if before.get(key) != now
        ]
        if differ:
            allowed = f"a folder measured in the same way, or a new one ({file.name}: "
            raise RequestError("out", str(self.path), f"{allowed}{'; '.join(differ)})")

    def kept(self, part: Part) -> tuple[Mapping[str, Any], datetime] | None:
        """A complete document, and when it was measured."""
        file, moment = self.file(part.title), self._parts.get(part.title, {}).get("measured_at")
        if moment is None or not file.exists():
            return None
        return _read(file), parse_time(moment)

    def record(self, part: Part, moment: datetime | None = None) -> None:
        """Record the settings before measuring, and the moment when it is complete."""
        measured_at = format_time(moment) if moment else None
        self._parts[part.title] = {
            "settings": dict(part.settings),
            "hosts": list(part.hosts),
            "measured_at": measured_at,
        }
        _write(self.path / SETTINGS, {"schema_version": SETTINGS_VERSION, "parts": self._parts})

    def finish(self, part: Part, document: Mapping[str, Any], moment: datetime | None) -> None:
        """Keep a document; ``moment``: None if something is missing in it."""
        _write(self.file(part.title), document)
        self.record(part, moment)


class Campaign:
    """All parts: ``entries`` were measured, ``failed`` says why others are missing."""

    def __init__(self, options: Options, folder: Path | None) -> None:
        """Check the options and the folder before measuring. Raises RequestError, DataError."""
        self.entries: list[Entry] = []
        self.failed: list[str] = []
        self._options = options
        self._about = {"instance_type": options.instance_type, "local": options.there.local}
        self._hosts = tuple(host.name for host in options.where)
        self._folder = Folder(folder) if folder is not None else None
        self._parts = list(self._all())
        for part in self._parts:
            if self._folder:
                self._folder.check(part)
        self.titles = tuple(part.title for part in self._parts)

    def measure(self) -> None:
        """Measure what can be; the rest is in ``failed``.

        Raises DataError: the folder cannot be written.
        """
        for part in self._parts:
            kept = self._folder.kept(part) if self._folder else None
            if self._folder and kept is None:
                self._folder.record(part)
            try:
                if kept is None:
                    self._measure(part)
                else:
                    say(
                        f"{part.title}: measured before, see {self._name(part)}; remove it to measure again"
                    )
                    self._add(part, *kept)
            except DeepVMError as error:
                reason = str(error)
                if isinstance(error, RequestError):
                    reason = error.about(f"--{option_name(error.option)}")
                self.failed.append(f"{part.title} is missing: {reason}")
                say(f"{part.title} failed: {reason}")
        if len(self._hosts) < 2:
            say(
                "no speed-up and no saturation: they need two hosts or more (--hosts, --hosts-file)"
            )
        elif not self._options.receiver:
            say("no saturation: it needs a host that all push to (--receiver)")

    def _measure(self, part: Part) -> None:
        say(f"{part.title}:")
        document, missing = part.work()
        moment = datetime.now(timezone.utc)
        self.failed += [f"{part.title}: {text}" for text in missing]
        self._add(part, document, moment)
        if self._folder is not None:
            try:
                self._folder.finish(part, document, None if missing else moment)
            except DataError as error:
                self.failed.append(f"{part.title} is measured, but not kept: {error}")

    def _add(self, part: Part, document: Mapping[str, Any], moment: datetime) -> None:
        from deepvm.services.profiling import entry_from

        own_type, name = self._options.instance_type, self._name(part)
        self.entries.append(
            entry_from(document, say, instance_type=own_type, measured_at=moment, name=name)
        )

    def _name(self, part: Part) -> str:
        return str(self._folder.file(part.title)) if self._folder else part.title

    def _all(self) -> Iterator[Part]:
        options = self._options
        models = models_of(options.model, o.ALL)
        if options.receiver and len(self._hosts) < 2:
            allowed = "two hosts or more that push to it, with --hosts or --hosts-file"
            raise RequestError("receiver", options.receiver, allowed)
        if options.receiver and not options.receiver_type:
            allowed = "what the provider calls the receiver, such as c4.xlarge"
            raise RequestError("receiver_type", "", allowed)
        yield from map(self._eflops, models)
        if len(self._hosts) > 1:
            yield from map(self._scaling, models)
        if options.receiver:
            yield self._saturation()

    def _eflops(self, model: str) -> Part:
        from deepvm.profiling.eflops.measure_eflops import (
            check_numbers,
            measure_eflops,
            measure_eflops_on,
        )

        options = self._options
        check_numbers(options.batch, options.resolution, options.windows, options.seconds)
        chosen = {"model": model} | self._chosen(
            "batch", "resolution", "device", "windows", "seconds"
        )

        def work() -> tuple[Mapping[str, Any], list[str]]:
            if options.where:
                return measure_eflops_on(options.where[0], options.there, chosen, say=say), []
            return measure_eflops(**chosen, say=say).document(), []

        return Part(f"eflops-{model}", chosen | self._about, self._hosts[:1], work)

    def _scaling(self, model: str) -> Part:
        from deepvm.profiling.scaling.measure_scaling import Task, measure_scaling
        from deepvm.profiling.scaling.scaling_coordinator import Limits

        options, title = self._options, f"scaling-{model}"
        chosen = self._chosen(
            "batch", "resolution", "device", "warmup", "windows", "steps", "repeats"
        )
        task = Task(model, sizes=sizes_of(options.sizes), **chosen)
        sizes = list(task.sizes_for(len(options.where)))
        limits = Limits(o.START_TIMEOUT, o.RUN_TIMEOUT)

        def work() -> tuple[Mapping[str, Any], list[str]]:
            file = self._folder.file(title) if self._folder else None
            curve = measure_scaling(
                task, options.where, options.there, limits=limits, out=file, say=say
            )
            missing = [curve.unwritten] if curve.unwritten else []
            if curve.missing:
                missing.append(f"no time for n = {', '.join(map(str, curve.missing))}")
            return curve.document(), missing

        return Part(title, chosen | {"sizes": sizes} | self._about, self._hosts, work)

    def _saturation(self) -> Part:
        from deepvm.profiling.saturation.measure_saturation import measure
        from deepvm.profiling.saturation.setup import Setup

        options = self._options
        settings = self._chosen("transport", "repeats", "receiver_type")
        settings["checkpoint_bytes"] = parse_bytes(options.checkpoint_size)
        settings["sender_type"] = options.instance_type
        receiver = o.receiver_of(options.receiver)
        setup = Setup(receiver=receiver, senders=options.where, launcher=options.there, **settings)
        settings |= {"senders": len(self._hosts), "local": options.there.local}
        hosts = (options.receiver, *self._hosts)
        return Part("saturation", settings, hosts, lambda: (measure(setup, say).document(), []))

    def _chosen(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self._options, name) for name in names}


def _read(file: Path) -> Mapping[str, Any]:
    try:
        document: dict[str, Any] = json.loads(read_text(file))
    except ValueError as error:
        raise DataError(f"{file}: not JSON ({error}); remove it to measure again") from None
    return document


def _write(file: Path, document: Mapping[str, Any]) -> None:
    from deepvm.reports.documents import to_json

    write_bytes(file, to_json(dict(document)).encode())
