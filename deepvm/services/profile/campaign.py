"""The parts of ``deepvm profile all``: measured in turn, kept in a folder, skipped if complete."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from deepvm.catalog.measured.entries import Entry
from deepvm.catalog.measured.tables import refuse_missing_types
from deepvm.core.units import format_time, parse_bytes, parse_time
from deepvm.errors import DataError, DeepVMError, MeasurementError, RequestError
from deepvm.io.atomic_write import write_document
from deepvm.io.safe_read import read_text
from deepvm.profiling.eflops.measure_eflops import check_numbers, measure_eflops, measure_eflops_on
from deepvm.profiling.hosts.launcher import Host, Launcher
from deepvm.profiling.hosts.machine import describe
from deepvm.profiling.saturation.measure_saturation import measure
from deepvm.profiling.saturation.setup import Setup
from deepvm.profiling.scaling.measure_scaling import Task, measure_scaling
from deepvm.profiling.scaling.scaling_coordinator import Limits
from deepvm.services.profile.measuring import chosen, hosts_of, models_of, receiver_of, sizes_of
from deepvm.services.profile.options import ALL, CampaignOptions
from deepvm.services.profile.saving import check_save, entry_from, save

SETTINGS = "settings.json"
SETTINGS_VERSION = "deepvm.profile/1"
LIMITS = Limits(start_s=180.0, run_s=1800.0)


Document = Mapping[str, Any]


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
    settings: Document
    hosts: tuple[Host, ...]
    work: Callable[[], tuple[Document, str]]


class Folder:
    """Keeps documents, with a record of the settings that each was measured with.

    Without a path it keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the record. Raises DataError."""
        self.path = path
        self._parts: dict[str, Any] = {}
        if path and (path / SETTINGS).exists():
            self._parts = dict(_read(path / SETTINGS)["parts"])

    def file(self, title: str) -> Path | None:
        """The file of a part."""
        return self.path and self.path / f"{title}.json"

    def kept(self, part: Part) -> tuple[Document, datetime] | None:
        """A complete document, and when it was measured.

        Raises RequestError: it was measured with other settings.
        """
        file = self.file(part.title)
        if file is None or not file.exists():
            return None
        record = self._parts.get(part.title, {})
        before = record.get("settings", {})
        differ = [
            f"{key} {before.get(key)!r} there, {now!r} now"
            for key, now in part.settings.items()
            if before.get(key) != now
        ]
        if differ:
            allowed = f"a folder measured in the same way, or a new one ({file.name}: "
            raise RequestError("out", str(self.path), f"{allowed}{'; '.join(differ)})")
        moment = record.get("measured_at")
        return moment and (_read(file), parse_time(moment))

    def keep(
        self, part: Part, document: Document | None = None, moment: datetime | None = None
    ) -> None:
        """Write a part's settings, and its document once there is one.

        ``moment``: when it was measured, None if something is missing in it.
        """
        if self.path is None:
            return
        if document is not None:
            write_document(self.path / f"{part.title}.json", document)
        self._parts[part.title] = {
            "settings": dict(part.settings),
            "hosts": [host.name for host in part.hosts],
            "measured_at": format_time(moment) if moment else None,
        }
        record = {"schema_version": SETTINGS_VERSION, "parts": self._parts}
        write_document(self.path / SETTINGS, record)


class Campaign:
    """All parts: ``entries`` were measured, ``failed`` says why others are missing."""

    def __init__(
        self,
        options: CampaignOptions,
        folder: Path | None,
        say: Callable[[str], None],
        save: bool = False,
    ) -> None:
        """Check the options and the folder before measuring. Raises RequestError, DataError."""
        self._hosts: tuple[Host, ...] = ()
        if options.hosts or options.hosts_file:
            self._hosts = hosts_of("hosts", options.hosts, options.hosts_file)
        own_type = options.instance_type
        if not own_type and not self._hosts:
            own_type = describe()["instance_type"]
        refuse_missing_types("eflops", {"instance_type": own_type})
        if save:
            check_save("eflops", instance_type=own_type)
        self.entries: list[Entry] = []
        self.failed: list[str] = []
        self._options = replace(options, instance_type=own_type)
        self._say = say
        self._launcher = Launcher.parse(options.launcher, options.python, options.workdir)
        self._about = {"instance_type": own_type, "local": self._launcher.local}
        self._folder = Folder(folder)
        self._parts = [(part, self._folder.kept(part)) for part in self._all()]
        self.titles = tuple(part.title for part, _ in self._parts)

    def measure(self) -> None:
        """Measure all parts; a failure is added to ``failed``, and the next part follows.

        Raises DataError: the folder cannot be written.
        """
        for part, kept in self._parts:
            if kept is not None:
                self._say(f"{part.title}: measured before, see {self._name(part)}")
                self._add(part, *kept)
                continue
            # Before the measurement: an interrupted part must not be resumed with other settings
            self._folder.keep(part)
            self._say(f"{part.title}:")
            try:
                document, missing = part.work()
                moment = datetime.now(timezone.utc)
                self._add(part, document, moment)
                if missing:
                    self.failed.append(f"{part.title}: {missing}")
                self._folder.keep(part, document, None if missing else moment)
            except DeepVMError as error:
                self.failed.append(f"{part.title} is missing: {error}")
                self._say(f"{part.title} failed: {error}")
        if len(self._hosts) < 2:
            self._say(
                "no speed-up and no saturation: they need two hosts or more (--hosts, --hosts-file)"
            )
        elif not self._options.receiver:
            self._say("no saturation: it needs a host that all push to (--receiver)")

    def save(self, *, force_spread: bool) -> None:
        """Save what can be saved in the user's tables."""
        entries = [entry for entry in self.entries if not entry.local]
        for entry in self.entries:
            if entry.local:
                reason = "processes of one machine say nothing about VMs"
                self._say(f"Note: {entry.name} is not saved: {reason}")
        try:
            save(entries, self._say, force_spread=force_spread)
        except MeasurementError as error:
            self.failed.append(str(error))

    def _add(self, part: Part, document: Document, moment: datetime) -> None:
        self.entries.append(
            entry_from(
                document,
                self._say,
                instance_type=self._options.instance_type,
                measured_at=moment,
                name=self._name(part),
            )
        )

    def _name(self, part: Part) -> str:
        return str(self._folder.file(part.title) or part.title)

    def _all(self) -> Iterator[Part]:
        options = self._options
        models = models_of(options.model, ALL)
        if options.receiver and len(self._hosts) < 2:
            allowed = "two hosts or more that push to it, with --hosts or --hosts-file"
            raise RequestError("receiver", options.receiver, allowed)
        yield from map(self._eflops, models)
        if len(self._hosts) > 1:
            yield from map(self._scaling, models)
        if options.receiver:
            yield self._saturation()

    def _eflops(self, model: str) -> Part:
        options = self._options
        check_numbers(options.batch, options.resolution, options.windows, options.seconds)
        given = {"model": model} | chosen(
            options, "batch", "resolution", "device", "windows", "seconds"
        )

        def work() -> tuple[Document, str]:
            if self._hosts:
                return measure_eflops_on(self._hosts[0], self._launcher, given, say=self._say), ""
            return measure_eflops(**given, say=self._say).document(), ""

        return Part(f"eflops-{model}", given | self._about, self._hosts[:1], work)

    def _scaling(self, model: str) -> Part:
        options = self._options
        title = f"scaling-{model}"
        given = chosen(
            options, "batch", "resolution", "device", "warmup", "windows", "steps", "repeats"
        )
        task = Task(model, sizes=sizes_of(options.sizes), **given)
        sizes = list(task.sizes_for(len(self._hosts)))

        def work() -> tuple[Document, str]:
            file = self._folder.file(title)
            curve = measure_scaling(
                task, self._hosts, self._launcher, limits=LIMITS, out=file, say=self._say
            )
            missing = [curve.unwritten] if curve.unwritten else []
            if curve.missing:
                missing.append(f"no time for n = {', '.join(map(str, curve.missing))}")
            return curve.document(), "; ".join(missing)

        return Part(title, given | {"sizes": sizes} | self._about, self._hosts, work)

    def _saturation(self) -> Part:
        options = self._options
        settings = chosen(options, "transport", "repeats", "receiver_type")
        settings["checkpoint_bytes"] = parse_bytes(options.checkpoint_size)
        settings["sender_type"] = options.instance_type
        refuse_missing_types("saturation", settings)
        receiver = receiver_of(options.receiver)
        setup = Setup(receiver=receiver, senders=self._hosts, launcher=self._launcher, **settings)
        settings |= {"senders": len(self._hosts), "local": self._launcher.local}
        hosts = (receiver, *self._hosts)
        return Part(
            "saturation", settings, hosts, lambda: (measure(setup, self._say).document(), "")
        )


def _read(file: Path) -> Document:
    try:
        document: dict[str, Any] = json.loads(read_text(file))
    except ValueError as error:
        raise DataError(f"{file}: not JSON ({error}); remove it to measure again") from None
    return document
