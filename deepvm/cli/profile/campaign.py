"""The parts of ``deepvm profile all``: measured in turn, kept in a folder, skipped when already there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deepvm.cli.option_dataclass import option_name
from deepvm.cli.output import note, say
from deepvm.cli.profile.save import entry_from
from deepvm.errors import DataError, DeepVMError, RequestError

if TYPE_CHECKING:
    from deepvm.catalog.measured.entries import Entry
    from deepvm.profiling.hosts.host_list import Host
    from deepvm.profiling.hosts.launcher import Launcher
    from deepvm.profiling.saturation.setup import Setup
    from deepvm.profiling.scaling.measure_scaling import Task

SETTINGS, SETTINGS_VERSION = "settings.json", "deepvm.profile/1"
_START_S, _RUN_S = 180.0, 1800.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is measured, where and how.

    Attributes:
        hosts: those that train; none for this machine. launcher: how commands get there.
        receiver: what all push to, "" for none. types: of the VMs that train, and of the receiver.
        models: that are trained. batch, resolution, device: of a step.
        sizes: numbers of VMs. repeats: runs of each size, and pushes of each number of senders.
        windows: times that are taken. seconds: a window of eFLOPS lasts at least. warmup, steps: of scaling.
        checkpoint_bytes: that are pushed. transport: what carries them.
    """

    hosts: tuple[Host, ...]
    launcher: Launcher
    receiver: str
    types: tuple[str, str]
    models: tuple[str, ...]
    batch: int
    resolution: int
    device: str
    sizes: tuple[int, ...]
    repeats: int
    windows: int
    seconds: float
    warmup: int
    steps: int
    checkpoint_bytes: int
    transport: Literal["tcp", "mpi"]

    def eflops(self, model: str) -> dict[str, Any]:
        """Arguments of :func:`~deepvm.profiling.eflops.measure_eflops.measure_eflops`; refuses impossible numbers."""
        from deepvm.profiling.eflops.measure_eflops import check_numbers

        check_numbers(self.batch, self.resolution, self.windows, self.seconds)
        return {
            "model": model,
            "batch": self.batch,
            "resolution": self.resolution,
            "device": self.device,
            "windows": self.windows,
            "seconds": self.seconds,
        }

    def task(self, model: str) -> Task:
        """What to train on all hosts; refuses sizes that there are not."""
        from deepvm.profiling.scaling.measure_scaling import Task

        task = Task(
            model,
            self.batch,
            self.resolution,
            self.device,
            self.sizes,
            self.repeats,
            self.warmup,
            self.windows,
            self.steps,
        )
        task.sizes_for(len(self.hosts))
        return task

    def setup(self) -> Setup:
        """What to push; refuses what cannot be."""
        from deepvm.profiling.hosts.host_list import parse_hosts
        from deepvm.profiling.saturation.setup import Setup

        (receiver,) = parse_hosts(self.receiver, "receiver")
        return Setup(
            receiver=receiver,
            senders=self.hosts,
            launcher=self.launcher,
            transport=self.transport,
            checkpoint_bytes=self.checkpoint_bytes,
            repeats=self.repeats,
            sender_type=self.types[0],
            receiver_type=self.types[1],
        )


@dataclass(frozen=True)
class Part:
    """One document.

    Attributes:
        title: names it, and its file. settings: that must be the same for a file to count. hosts: where.
        work: measures it.
        whole: whether a document that is there is all of it.
    """

    title: str
    settings: Mapping[str, Any]
    hosts: tuple[str, ...]
    work: Callable[[], Mapping[str, Any]]
    whole: Callable[[Mapping[str, Any]], bool] = lambda document: True


class Folder:
    """Where documents are kept, with a record of the settings that each was measured with."""

    def __init__(self, path: Path) -> None:
        """Read the record.

        Raises:
            DataError: it cannot be read.
        """
        self.path = path
        record = path / SETTINGS
        found = _read(record) if record.exists() else {"schema_version": SETTINGS_VERSION, "parts": {}}
        parts = found.get("parts")
        if found.get("schema_version") != SETTINGS_VERSION or not isinstance(parts, dict):
            raise DataError(f"{record}: is no record of this deepvm; name another folder with --out")
        self._parts: dict[str, Any] = parts

    def file(self, title: str) -> Path:
        """The file of a part."""
        return self.path / f"{title}.json"

    def check(self, part: Part) -> None:
        """Refuse a document measured with other settings; note when hosts were replaced.

        Raises:
            RequestError: says what differs.
        """
        file = self.file(part.title)
        if not file.exists():
            return
        try:
            record = self._parts[part.title]
            was, hosts = dict(record["settings"]), tuple(record["hosts"])
        except (TypeError, KeyError, ValueError):
            why = f"nothing says how {file} was measured; remove it to measure anew"
            raise RequestError("out", str(self.path), why) from None
        now = dict(part.settings)
        other = [
            f"{key} {was.get(key)!r} there, {now.get(key)!r} here"
            for key in sorted(was.keys() | now.keys())
            if was.get(key) != now.get(key)
        ]
        if other:
            why = f"a folder that was measured in the same way, or a new one ({file.name}: {'; '.join(other)})"
            raise RequestError("out", str(self.path), why)
        if hosts != part.hosts:
            note(f"{file} was begun on {', '.join(hosts)}; now {', '.join(part.hosts)} stand for them")

    def kept(self, part: Part) -> tuple[Mapping[str, Any], datetime] | None:
        """A document that is whole, and when it was measured."""
        from deepvm.io.times import parse_time

        file = self.file(part.title)
        if not file.exists() or not part.whole(document := _read(file)):
            return None
        try:
            return document, parse_time(self._parts[part.title]["measured_at"])
        except (KeyError, TypeError, ValueError, AttributeError):  # it was ended before it could say so
            return document, datetime.fromtimestamp(file.stat().st_mtime, timezone.utc)

    def begin(self, part: Part) -> None:
        """Record the settings before measuring."""
        self._note(part, None)

    def finish(self, part: Part, document: Mapping[str, Any], moment: datetime) -> None:
        """Keep a document, unless it has been growing here."""
        from deepvm.io.times import format_time

        if not self.file(part.title).exists():
            _write(self.file(part.title), document)
        self._note(part, format_time(moment.replace(microsecond=0)))

    def _note(self, part: Part, moment: str | None) -> None:
        self._parts[part.title] = {
            "settings": dict(part.settings),
            "hosts": list(part.hosts),
            "measured_at": moment,
        }
        _write(self.path / SETTINGS, {"schema_version": SETTINGS_VERSION, "parts": self._parts})


class Campaign:
    """All parts.

    Attributes:
        entries: what was measured. failed: why parts are missing.
    """

    def __init__(self, options: Options, folder: Path | None) -> None:
        """Check the options before minutes of measuring.

        Raises:
            RequestError: an option cannot be used, or the folder was measured with others. DataError: it cannot be
                read.
        """
        self.entries: list[Entry] = []
        self.failed: list[str] = []
        self._options = options
        self._folder = Folder(folder) if folder is not None else None
        self._parts = list(self._all())
        if self._folder is not None:
            for part in self._parts:
                self._folder.check(part)

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of all parts."""
        return tuple(part.title for part in self._parts)

    def measure(self) -> None:
        """Measure what can be; the rest is in ``failed``.

        Raises:
            DataError: nothing can be written into the folder, so that nothing could be kept.
        """
        for part in self._parts:
            kept = None
            if self._folder is not None:
                kept = self._folder.kept(part)
                if kept is None:
                    self._folder.begin(part)
            try:
                self._measure(part, kept)
            except DeepVMError as error:
                self.failed.append(f"{part.title} is missing: {_reason(error)}")
                say(f"{part.title} failed: {_reason(error)}")
        if len(self._options.hosts) < 2:
            say("no speed-up and no saturation: they need two hosts or more (--hosts, --hosts-file)")
        elif not self._options.receiver:
            say("no saturation: it needs a host that all push to (--receiver)")

    def _measure(self, part: Part, kept: tuple[Mapping[str, Any], datetime] | None) -> None:
        if kept is not None:
            assert self._folder is not None
            say(f"{part.title}: measured before, see {self._folder.file(part.title)}; remove it to measure anew")
            document, moment = kept
        else:
            say(f"{part.title}:")
            document, moment = part.work(), datetime.now(timezone.utc)
        file = str(self._folder.file(part.title)) if self._folder is not None else part.title
        self.entries.append(entry_from(document, instance_type=self._options.types[0], measured_at=moment, name=file))
        if kept is None and self._folder is not None:
            try:
                self._folder.finish(part, document, moment)
            except DataError as error:
                self.failed.append(f"{part.title} is measured, but not kept: {error}")

    def _all(self) -> list[Part]:
        o = self._options
        about = {"instance_type": o.types[0], "local": o.launcher.local}
        names = tuple(host.name for host in o.hosts)
        found = []
        for model in o.models:
            settings = o.eflops(model)
            work = lambda settings=settings: self._eflops(settings)  # noqa: E731
            found.append(Part(f"eflops-{model}", settings | about, names[:1], work))
        if len(o.hosts) < 2:
            return found
        for model in o.models:
            task = o.task(model)
            plan = {"sizes": list(task.sizes_for(len(o.hosts))), "repeats": o.repeats}
            shared = {name: getattr(task, name) for name in _OF_SCALING}
            whole = lambda document, plan=plan: _finished(document, plan)  # noqa: E731
            work = lambda task=task: self._scaling(task)  # noqa: E731
            found.append(Part(f"scaling-{model}", shared | plan | about, names, work, whole))
        if o.receiver:
            setup = o.setup()
            pushed = {name: getattr(setup, name) for name in _OF_SATURATION} | {"senders": len(o.hosts)}
            work = lambda setup=setup: self._saturation(setup)  # noqa: E731
            found.append(Part("saturation", pushed | {"local": o.launcher.local}, (o.receiver, *names), work))
        return found

    def _eflops(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._options.hosts:
            from deepvm.profiling.eflops.measure_eflops import measure_eflops_on

            return measure_eflops_on(self._options.hosts[0], self._options.launcher, settings, say=say)
        from deepvm.profiling.eflops.measure_eflops import measure_eflops

        return measure_eflops(**settings, say=say).document()

    def _scaling(self, task: Task) -> Mapping[str, Any]:
        from deepvm.profiling.scaling.measure_scaling import measure_scaling
        from deepvm.profiling.scaling.scaling_coordinator import Limits

        title, o = f"scaling-{task.model}", self._options
        file = self._folder.file(title) if self._folder is not None else None
        curve = measure_scaling(task, o.hosts, o.launcher, limits=Limits(_START_S, _RUN_S), out=file, say=say)
        if curve.missing:
            self.failed.append(f"{title}: no time for n = {', '.join(map(str, curve.missing))}")
        if curve.unwritten:
            self.failed.append(f"{title}: {curve.unwritten}")
        return curve.document()

    def _saturation(self, setup: Setup) -> Mapping[str, Any]:
        from deepvm.profiling.saturation.measure_saturation import measure

        return measure(setup, say).document()


_OF_SCALING = ("batch", "resolution", "device", "warmup", "windows", "steps")
_OF_SATURATION = ("transport", "checkpoint_bytes", "repeats", "sender_type", "receiver_type")


def _finished(document: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Whether a curve has all its runs, and what is said when they are over."""
    try:
        done = {(r["n"], r["repeat"]) for r in document["runs"] if r["failed"] is None}
        said = document["fit"] is not None or bool(document["warnings"])
    except (KeyError, TypeError):
        return False  # scaling says what is wrong with it
    return said and done >= {(n, r) for n in plan["sizes"] for r in range(1, plan["repeats"] + 1)}


def _reason(error: DeepVMError) -> str:
    return error.about(f"--{option_name(error.option)}") if isinstance(error, RequestError) else str(error)


def _read(file: Path) -> Mapping[str, Any]:
    import json

    from deepvm.errors import CatalogFormatError
    from deepvm.io.safe_read import read_text

    try:
        found = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: is no JSON ({error}); remove it to measure anew") from None
    except CatalogFormatError as error:
        raise DataError(f"{file}: {error.problems[0].found}; remove it to measure anew") from None
    if not isinstance(found, dict):
        raise DataError(f"{file}: is no measurement; remove it to measure anew")
    return found


def _write(file: Path, document: Mapping[str, Any]) -> None:
    from deepvm.io.atomic_write import write_bytes
    from deepvm.reports.documents import to_json

    write_bytes(file, to_json(dict(document)).encode())
