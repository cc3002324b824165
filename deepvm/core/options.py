"""Options, declared once: for Python, the command line, settings and help."""

import re
from collections.abc import Callable, Sequence
from copy import copy
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

from deepvm.core.spelling import one_of
from deepvm.errors import RequestError
from deepvm.records import MISSING, Field, dataclass, field, fields

# Takes a value as users write it, and the option's name for the error
Reader: TypeAlias = Callable[[Any, str], Any]

BUDGET = "Budget"
TRAINING = "What you train"
RENTED = "What may be rented"
PRICES = "Prices"
OUTPUT = "Output"
GROUPS = (BUDGET, TRAINING, RENTED, PRICES, OUTPUT)  # Titles in ``--help``, in this order


@dataclass(frozen=True, kw_only=True)
class Option:
    """How users set a field of a dataclass of options."""

    help: str
    metavar: str | None = None
    names: tuple[str, ...] = ()  # on the command line, if not the field's
    key: str = ""  # in files, if not the field's name
    group: str = ""  # the title above it in --help; those without one are rare
    kind: type = str  # of values on the command line
    choices: Sequence[str] = ()
    least: int | None = None
    most: int | None = None
    complete: str = ""  # values for the shell, a kind of cli.help.completion
    read: Reader | None = None  # parses the value
    into: str = ""  # the field for the result
    part: str = ""  # of a request that reads it


def option(default: Any, help: str, metavar: str | None = None, *names: str, **about: Any) -> Any:
    """A field that users set, repeatable with a list as default; ``about`` as :class:`Option`."""
    if isinstance(default, bool):
        about["kind"] = bool
    choices: Any = about.get("choices", ())
    if isinstance(choices, type):
        about["choices"] = [choice.value for choice in choices]  # type: ignore[attr-defined]
        about.setdefault("read", one_of_kind(choices))
    metadata = {"option": Option(help=help, metavar=metavar, names=names, **about)}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def field_named(record: Any, name: str) -> Field[Any]:
    """A field of a dataclass."""
    return record.__dataclass_fields__[name]  # type: ignore[no-any-return]


def again(record: Any, name: str) -> Any:
    """A field of another record once more, with its option and default."""
    return copy(field_named(record, name))


def option_of(given: Field[Any]) -> Option | None:
    """The option that sets a field, if any."""
    return given.metadata.get("option")


def default_of(given: Field[Any]) -> Any:
    """The default of a field; a new object where it is mutable."""
    if given.default_factory is not MISSING:
        return given.default_factory()
    return given.default


def one_of_kind(kinds: type[Enum]) -> Reader:
    """Reads a value of an enum."""

    def read(value: Any, name: str) -> Enum:
        try:
            return kinds(value)
        except ValueError:
            allowed = one_of(value, (str(kind.value) for kind in kinds))
            raise RequestError(name, value, allowed) from None

    return read


def whole(limit: int) -> Reader:
    """Reads a whole number from 1 to ``limit``."""

    def read(value: Any, name: str) -> int:
        from deepvm.core.units import to_whole  # slow to load

        is_text = isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", value)
        if is_text and 1 <= int(value) <= limit:
            return int(value)
        return to_whole(value, name, f"a whole number from 1 to {limit}", least=1, most=limit)

    return read


def words(value: str | Sequence[str], name: str) -> tuple[str, ...]:
    """Names or globs, also several in one text: ``g5.*,p5.*``; globs keep commas in brackets."""
    texts = [value] if isinstance(value, str) else value
    return tuple(word.strip() for text in texts for word in re.split(r",(?![^\[]*\])", text))


def size(value: Any, name: str) -> int:
    """Reads bytes, such as ``300MB``."""
    from deepvm.core.units import parse_bytes  # slow to load

    return parse_bytes(value, name)


def seconds(value: Any, name: str) -> float:
    """Reads a number of seconds above 0."""
    from deepvm.core.units import to_decimal

    return float(to_decimal(value, name, unit="seconds"))


NOT_MODELED = ("tp", "pp", "3d", "tensor-parallel", "pipeline-parallel", "megatron")
WHAT_IS_MODELED = "tensor and pipeline parallelism are not modeled: deepvm help models"
_METHODS = ("auto", "ddp", "fsdp", "lora")
_PRECISIONS = ("auto", "fp32", "tf32", "fp16", "bf16", "fp8")


_workload_option = partial(option, None, group=TRAINING)


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """What is trained; numbers may be text, ``model`` an object too."""

    model: Any = option(
        "",
        "A preset of 'deepvm performance models', or a .yaml file.",
        "NAME|FILE",
        group=TRAINING,
        complete="complete_model",
    )
    params: Any = _workload_option("Instead: a language model of this size, such as 7B.", "COUNT")
    seq: Any = _workload_option("Tokens of a sample; default: the model's.", "TOKENS")
    method: str = option(
        "auto",
        "All on a GPU, sharded, or adapters; auto: by size; no tensor parallelism.",
        group=TRAINING,
        choices=_METHODS,
    )
    precision: str = option(
        "auto", "auto, bf16, fp16, fp8, tf32 or fp32.", "NAME", group=TRAINING, choices=_PRECISIONS
    )
    batch_per_gpu: Any = _workload_option(
        "Samples of a step on each GPU; default: the model's.", "N"
    )
    global_batch: Any = _workload_option("Instead: samples of a step on all GPUs together.", "N")
    activation_checkpointing: bool | None = option(
        None,
        "Recompute activations to save memory.",
        None,
        "--activation-checkpointing/--no-activation-checkpointing",
        group=TRAINING,
        kind=bool,
    )

    @property
    def names_a_model(self) -> bool:
        return bool(self.model) or self.params is not None


@dataclass(frozen=True, kw_only=True, init=False)
class AmountOptions(WorkloadOptions):
    """Adds how much is trained in all; ``epochs`` are of the data set, in the model's unit."""

    tokens: Any = _workload_option("Tokens to train on, such as 2B: adds time and bill.", "COUNT")
    samples: Any = _workload_option("Instead: samples to train on, such as 50M.", "COUNT")
    epochs: Any = _workload_option(
        "Instead: passes over a data set, with --dataset-size.", "N", group=""
    )
    dataset_size: Any = _workload_option(
        "Its samples; of a language model its tokens.", "COUNT", group=""
    )


def workload_keywords(options: WorkloadOptions, usual_model: str = "") -> dict[str, Any]:
    """The options by name, with ``usual_model`` where none is named."""
    names = [f.name for f in fields(AmountOptions) if hasattr(options, f.name)]
    values = {name: getattr(options, name) for name in names}
    if not options.names_a_model:
        values["model"] = usual_model
    return values


USUAL_MODEL = "resnet50"  # That of the paper's experiments
