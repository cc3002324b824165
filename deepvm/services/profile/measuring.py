"""The measurements of ``deepvm profile``: options in, results out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepvm.catalog.published.workloads import presets
from deepvm.core.spelling import one_of
from deepvm.core.training.workload import Model
from deepvm.core.units import parse_bytes, refuse_outside
from deepvm.errors import RequestError
from deepvm.profiling.eflops.measure_eflops import Eflops, measure_eflops
from deepvm.profiling.fit.scaling_document import Curve
from deepvm.profiling.hosts.launcher import Host, Launcher, parse_hosts, read_hosts
from deepvm.profiling.hosts.machine import describe
from deepvm.profiling.saturation.measure_saturation import Saturation, measure
from deepvm.profiling.saturation.setup import Setup
from deepvm.profiling.scaling.measure_scaling import Task, measure_scaling
from deepvm.profiling.scaling.scaling_coordinator import Limits
from deepvm.profiling.workload.spec import BATCH
from deepvm.services.profile.options import (
    ALL,
    MODELS,
    EflopsOptions,
    SaturationOptions,
    ScalingOptions,
)
from deepvm.services.profile.saving import check_save

Say = Callable[[str], None]


def check_eflops(options: EflopsOptions) -> tuple[str, ...]:
    """The models to measure; checks before minutes of measuring that the result could be saved."""
    if options.save:
        check_save("eflops", instance_type=options.instance_type or describe()["instance_type"])
    return models_of(options.model, ALL)


def eflops(options: EflopsOptions, model: str, say: Say) -> Eflops:
    """The training speed of this machine with one model; raises as :func:`measure_eflops`."""
    measured = measure_eflops(
        model,
        **chosen(
            options,
            "batch",
            "resolution",
            "windows",
            "device",
            "dtype",
            "optimizer",
            "processes",
            "seconds",
        ),
        data=Path(options.data) if options.data else None,
        timeout_s=options.timeout,
        say=say,
    )
    for warning in measured.warnings:
        say(f"Warning: {model}: {warning}")
    return measured


def scaling(options: ScalingOptions, say: Say, hear: Say | None) -> Curve:
    """The speed-up curve of hosts; raises as :func:`measure_scaling`."""
    check_timeouts(options.start_timeout, options.timeout)
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
        check_save(
            "scaling",
            instance_type=options.instance_type,
            local=launcher.local,
            force_local=options.force_local,
        )
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
    """The task to measure; raises RequestError for options that contradict each other."""
    text = _language(options.model, options.seq)
    name = options.model
    method = ""
    if text is not None:
        name = text.name
        method = options.method
    else:
        models_of([name])
        allowed = "only with a language model of 'deepvm performance models'"
        if options.method != "ddp":
            raise RequestError("method", options.method, allowed)
        if options.activation_checkpointing:
            raise RequestError("activation_checkpointing", True, allowed)
    if options.method == "fsdp" and options.dtype == "float16":
        raise RequestError("dtype", options.dtype, "bfloat16 or float32 with --method fsdp")
    if options.trains and ":" not in name:
        allowed = f"only with a model of your own: recommend knows {name} by its name"
        raise RequestError("trains", options.trains, allowed)
    batch = options.batch or str(text.batch if text else BATCH)
    first, *others = numbers_of("batch", batch, "32,64,128")
    return Task(
        name,
        first,
        **chosen(
            options,
            "resolution",
            "device",
            "dtype",
            "trains",
            "repeats",
            "warmup",
            "windows",
            "steps",
        ),
        sizes=sizes_of(options.sizes),
        batches=tuple(others),
        sequence=text.sequence if text else options.seq,
        method=method,
        checkpointing=options.activation_checkpointing,
    )


def saturation(
    options: SaturationOptions, say: Say, hear: Say | None, *, save: bool, force_local: bool
) -> Saturation:
    """How many senders one memory node takes; raises as :func:`measure`."""
    check_timeouts(options.start_timeout, options.timeout)
    launcher = Launcher.parse(options.launcher, options.python, options.workdir)
    if save:
        check_save(
            "saturation",
            **chosen(options, "sender_type", "receiver_type"),
            local=launcher.local,
            force_local=force_local,
        )
    setup = Setup(
        receiver=replace(receiver_of(options.receiver), address=options.receiver_address),
        senders=hosts_of("senders", options.senders, options.senders_file),
        launcher=launcher,
        checkpoint_bytes=parse_bytes(options.checkpoint_size),
        start_s=options.start_timeout,
        limit_s=options.timeout,
        **chosen(
            options,
            "transport",
            "repeats",
            "seed",
            "interface",
            "sender_type",
            "receiver_type",
            "sender_gbps",
            "receiver_gbps",
        ),
    )
    return measure(setup, say, hear, allow_one_machine=force_local or not save)


def chosen(options: object, *names: str) -> dict[str, Any]:
    """Some options by name."""
    return {name: getattr(options, name) for name in names}


def check_timeouts(start_timeout: float, timeout: float) -> None:
    """Raise a RequestError for a time limit out of range."""
    refuse_outside("start_timeout", start_timeout, 1, 1_000_000, what="seconds")
    refuse_outside("timeout", timeout, 1, 1_000_000, what="seconds")


def hosts_of(option: str, names: str, file: str) -> tuple[Host, ...]:
    """The hosts of either ``--option NAMES`` or ``--option-file FILE``.

    Raises RequestError, DataError.
    """
    if bool(names) == bool(file):
        both = f"{names} and {file}" if names else ""
        raise RequestError(option, both, f"one of --{option} NAMES and --{option}-file FILE")
    if file:
        return read_hosts(Path(file), f"{option}_file")
    return parse_hosts(names, option)


def receiver_of(name: str) -> Host:
    """The host that ``--receiver`` names. Raises RequestError: none, or several."""
    hosts = parse_hosts(name, "receiver")
    if len(hosts) != 1:
        raise RequestError("receiver", name, "one host")
    return hosts[0]


def models_of(names: list[str], *also: str) -> tuple[str, ...]:
    """Each named model once, deepvm's own for ``all``, which ``also`` may allow.

    Raises RequestError.
    """
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
        return numbers_of("sizes", text, "1,2,4,8")
    return ()


def numbers_of(option: str, text: str, example: str) -> tuple[int, ...]:
    """Numbers separated by commas. Raises RequestError."""
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
