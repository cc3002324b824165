"""The measurements of ``deepvm profile``: one, or all in turn, kept in a folder."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from inspect import signature
from pathlib import Path

from deepvm.catalog.measured.entries import Entry
from deepvm.catalog.measured.tables import refuse_missing_types
from deepvm.catalog.published.workloads import presets
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.progress import Say
from deepvm.core.spelling import one_of
from deepvm.core.training.workload import Model
from deepvm.core.units import format_time, parse_bytes, parse_time, refuse_outside
from deepvm.errors import (
    DataError,
    DeepVMError,
    MeasurementError,
    OptionMismatchError,
    RequestError,
)
from deepvm.io.atomic_write import write_document
from deepvm.io.safe_read import read_text
from deepvm.profiling.eflops.measure_eflops import (
    Eflops,
    check_numbers,
    measure_eflops,
    measure_eflops_on,
)
from deepvm.profiling.fit.scaling_document import Curve
from deepvm.profiling.hosts.launcher import Host, Launcher, parse_hosts, read_hosts
from deepvm.profiling.hosts.machine import describe
from deepvm.profiling.saturation.measure_saturation import Saturation, Setup, measure
from deepvm.profiling.scaling.measure_scaling import Limits, Task, measure_scaling
from deepvm.profiling.workload.spec import BATCH
from deepvm.records import dataclass, replace
from deepvm.services.profile.options import (
    ALL,
    MODELS,
    CampaignOptions,
    EflopsOptions,
    SaturationOptions,
    ScalingOptions,
)
from deepvm.services.profile.saving import check_save, entry_from, save


def check_eflops(options: EflopsOptions) -> tuple[str, ...]:
    """The models to measure; checks before minutes of measuring that the result could be saved."""
    if options.save:
        check_save("eflops", instance_type=options.instance_type or describe()["instance_type"])
    return models_of(options.model, ALL)


def eflops(options: EflopsOptions, model: str, say: Say) -> Eflops:
    """The training speed of this machine with one model; raises as :func:`measure_eflops`."""
    given = shared(options, measure_eflops) | {"model": model, "timeout_s": options.timeout}
    given["data"] = None
    if options.data:
        given["data"] = Path(options.data)
    measured = measure_eflops(**given, say=say)
    for warning in measured.warnings:
        say(f"Warning: {model}: {warning}")
    return measured


def scaling(options: ScalingOptions, say: Say, hear: Say | None) -> Curve:
    """The speed-up curve of hosts; raises as :func:`measure_scaling`."""
    _check_timeouts(options)
    task = _task(options)
    given = [str(one) for one in (options.hosts, options.hosts_file, options.local) if one]
    if len(given) != 1:
        allowed = "one of --hosts NAMES, --hosts-file FILE and --local N"
        raise RequestError("hosts", " and ".join(given), allowed)
    if options.local:
        name = "local"
        hosts = tuple(Host(f"local-{i + 1}") for i in range(options.local))
    else:
        name = options.launcher
        hosts = hosts_of("hosts", options.hosts, options.hosts_file)
    launcher = Launcher.parse(name, options.python, options.workdir)
    if options.save:
        about = chosen(options, "instance_type", "force_local")
        check_save("scaling", local=launcher.local, **about)
    return measure_scaling(
        task,
        hosts,
        launcher,
        limits=Limits(options.start_timeout, options.timeout),
        out=Path(options.out) if options.out else None,
        say=say,
        hear=hear,
        allow_one_machine=options.force_local or not options.save,
    )


def _task(options: ScalingOptions) -> Task:
    text = _language(options.model, options.seq)
    name = options.model
    method = ""
    if text is not None:
        name = text.name
        method = options.method
    else:
        models_of([name])
        reason = "needs a language model of 'deepvm performance models'"
        if options.method != "ddp":
            raise OptionMismatchError("method", options.method, f"{options.method} {reason}")
        if options.activation_checkpointing:
            raise OptionMismatchError("activation_checkpointing", True, reason)
    if options.method == "fsdp" and options.dtype == "float16":
        raise RequestError("dtype", options.dtype, "bfloat16 or float32 with --method fsdp")
    if options.trains and ":" not in name:
        reason = f"is for a model of your own: recommend knows {name} by its name"
        raise OptionMismatchError("trains", options.trains, reason)
    batch = options.batch or str(text.batch if text else BATCH)
    first, *others = _numbers_of("batch", batch, "32,64,128")
    given = shared(options, Task) | {"model": name, "batch": first, "method": method}
    given["sizes"] = sizes_of(options.sizes)
    return Task(
        **given,
        batches=tuple(others),
        sequence=text.sequence if text else options.seq,
        checkpointing=options.activation_checkpointing,
    )


def saturation(
    options: SaturationOptions, say: Say, hear: Say | None, *, save: bool, force_local: bool
) -> Saturation:
    """How many senders one memory node takes; raises as :func:`measure`."""
    _check_timeouts(options)
    launcher = Launcher.parse(options.launcher, options.python, options.workdir)
    if save:
        types = chosen(options, "sender_type", "receiver_type")
        check_save("saturation", local=launcher.local, force_local=force_local, **types)
    given = shared(options, Setup) | {"launcher": launcher}
    given["receiver"] = replace(_receiver_of(options.receiver), address=options.receiver_address)
    given["senders"] = hosts_of("senders", options.senders, options.senders_file)
    setup = Setup(
        **given,
        checkpoint_bytes=parse_bytes(options.checkpoint_size),
        start_s=options.start_timeout,
        limit_s=options.timeout,
    )
    return measure(setup, say, hear, allow_one_machine=force_local or not save)


def chosen(options: object, *names: str) -> JsonDict:
    """Some options by name."""
    return {name: getattr(options, name) for name in names}


def shared(options: object, use: Callable[..., object]) -> JsonDict:
    """The options that are parameters of ``use``, too."""
    return chosen(options, *(name for name in signature(use).parameters if hasattr(options, name)))


def _check_timeouts(options: object) -> None:
    for name, limit_s in chosen(options, "start_timeout", "timeout").items():
        refuse_outside(name, limit_s, 1, 1_000_000, what="seconds")


def hosts_of(option: str, names: str, file: str) -> tuple[Host, ...]:
    """The hosts of ``--option NAMES`` or ``--option-file FILE``. Raises RequestError, DataError."""
    if bool(names) == bool(file):
        both = ""
        if names:
            both = f"{names} and {file}"
        raise RequestError(option, both, f"one of --{option} NAMES and --{option}-file FILE")
    if file:
        return read_hosts(Path(file), f"{option}_file")
    return parse_hosts(names, option)


def _receiver_of(name: str) -> Host:
    hosts = parse_hosts(name, "receiver")
    if len(hosts) != 1:
        raise RequestError("receiver", name, "one host")
    return hosts[0]


def models_of(names: list[str], *also: str) -> tuple[str, ...]:
    """Each named model once, deepvm's own for ``all`` if in ``also``. Raises RequestError."""
    known = (*MODELS, *also)
    models: list[str] = []
    for name in names:
        if name not in known and not re.fullmatch(r"[\w.]+:\w+", name):
            own = ", or module:function for a model of your own"
            raise RequestError("model", name, one_of(name, known, ", ", also=own))
        models += MODELS if name == ALL else [name]
    return tuple(dict.fromkeys(models))


def sizes_of(text: str) -> tuple[int, ...]:
    """The numbers of VMs that ``--sizes`` names; none for the default. Raises RequestError."""
    if text:
        return _numbers_of("sizes", text, "1,2,4,8")
    return ()


def _numbers_of(option: str, text: str, example: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,18}( *, *[0-9]{1,18})*", text.strip(), re.ASCII):
        raise RequestError(option, text, f"whole numbers separated by commas, such as {example}")
    return tuple(int(n) for n in text.split(","))


def _language(name: str, sequence: int | None) -> Model | None:
    """The language model of a name that is built here; None for others. Raises RequestError."""
    model = presets().get(name.casefold())
    if name in MODELS or model is None:
        return None
    if model.transformer is None or not model.transformer.vocabulary:
        return None
    if sequence is None:
        return model
    return model.with_sequence(sequence)


SETTINGS = "settings.json"
SETTINGS_VERSION = "deepvm.profile/1"
LIMITS = Limits(start_s=180.0, run_s=1800.0)


@dataclass(frozen=True)
class Part:
    """One measurement, with a document as its result."""

    title: str  # also of its file
    settings: JsonObject  # a file measured with other ones is refused
    hosts: tuple[Host, ...]
    work: Callable[[], tuple[JsonObject, str]]  # returns the document, and what is missing in it


class Folder:
    """Keeps documents with the settings that each was measured with; without a path, nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._parts: JsonDict = {}
        if path and (path / SETTINGS).exists():
            self._parts = dict(_read(path / SETTINGS)["parts"])

    def file(self, title: str) -> Path | None:
        return self.path and self.path / f"{title}.json"

    def kept(self, part: Part) -> tuple[JsonObject, datetime] | None:
        """A complete document, and when it was measured. Raises RequestError: other settings."""
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
        self, part: Part, document: JsonObject | None = None, moment: datetime | None = None
    ) -> None:
        """Write a part's settings, and its document; ``moment``: None if it is incomplete."""
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
        self, options: CampaignOptions, folder: Path | None, say: Say, save: bool = False
    ) -> None:
        # Options and folder are checked before measuring
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
        """Measure all parts; the next one follows a failure. Raises DataError: of the folder."""
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
        entries = [entry for entry in self.entries if not entry.local]
        for entry in self.entries:
            if entry.local:
                reason = "processes of one machine say nothing about VMs"
                self._say(f"Note: {entry.name} is not saved: {reason}")
        try:
            save(entries, self._say, force_spread=force_spread)
        except MeasurementError as error:
            self.failed.append(str(error))

    def _add(self, part: Part, document: JsonObject, moment: datetime) -> None:
        own = self._options.instance_type
        name = self._name(part)
        entry = entry_from(document, self._say, instance_type=own, measured_at=moment, name=name)
        self.entries.append(entry)

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
        given: JsonDict = {"model": model} | chosen(
            options, "batch", "resolution", "device", "windows", "seconds"
        )

        def work() -> tuple[JsonObject, str]:
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

        def work() -> tuple[JsonObject, str]:
            file = self._folder.file(title)
            curve = measure_scaling(
                task, self._hosts, self._launcher, limits=LIMITS, out=file, say=self._say
            )
            missing = []
            if curve.unwritten:
                missing = [curve.unwritten]
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
        receiver = _receiver_of(options.receiver)
        setup = Setup(receiver=receiver, senders=self._hosts, launcher=self._launcher, **settings)
        settings |= {"senders": len(self._hosts), "local": self._launcher.local}
        hosts = (receiver, *self._hosts)
        return Part(
            "saturation", settings, hosts, lambda: (measure(setup, self._say).document(), "")
        )


def _read(file: Path) -> JsonObject:
    try:
        document: JsonDict = json.loads(read_text(file))
    except ValueError as error:
        raise DataError(f"{file}: not JSON ({error}); remove it to measure again") from None
    return document
