"""What is trained: models by name, by size or from a file, and how they are trained."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from deepvm.core.meanings import meant_model
from deepvm.core.options import NOT_MODELED, WHAT_IS_MODELED, one_of_kind, whole
from deepvm.core.spelling import examples
from deepvm.core.training.workload import Method, Model, Precision, Scaling, Transformer, Workload
from deepvm.errors import OptionMismatchError, RequestError
from deepvm.io.user_dirs import read_data

AUTO = "auto"
_COUNT = re.compile(
    r"\s*([0-9]{1,3}(?:,[0-9]{3})+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,2})?)\s*([a-z]*)\s*",
    re.ASCII | re.IGNORECASE,
)
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_FACTORS |= {"thousand": 1e3, "million": 1e6, "mio": 1e6}
_FACTORS |= {"billion": 1e9, "bn": 1e9, "trillion": 1e12}
_SEQUENCE = 2048  # Tokens of a sample unless the user says
_TOKENS_AT_ONCE = 16_384  # Of each GPU and step for a model without a known batch
# Parameters from which ``auto`` shards: 18 GB of state leave little for activations in 24 GB
SHARDED_FROM = 1e9
# Of a row of presets, or a file: the fields of :class:`Transformer`
_SHAPE = ("layers", "hidden", "vocabulary", "gated")
_MOST = 10_000_000


@cache
def presets() -> dict[str, Model]:
    """The models by name, in the order of the file."""
    models = {}
    aliases: dict[str, Model] = {}
    for row in read_data("performance/models.json")["models"]:
        other_names = row.pop("aliases", ())
        shape = {key: row.pop(key) for key in _SHAPE if key in row}
        model = Model(**row, transformer=Transformer(**shape) if shape else None)
        models[model.name] = model
        aliases |= dict.fromkeys(other_names, model)
    return models | aliases


def find_model(name: str) -> Model:
    """A preset by name or Hugging Face's id; raises a RequestError for an unknown one."""
    known = presets()
    wanted = name.strip().casefold()
    if "/" in wanted:
        hub = read_data("performance/hugging_face.json")
        for preset, patterns in hub["ids"].items():
            pattern = f"({'|'.join(patterns)}){hub['endings']}"
            if re.fullmatch(pattern, wanted.rpartition("/")[2]):
                return known[preset]
    if wanted not in known:
        meant = meant_model(wanted, known)
        which = examples(wanted, known, known[meant].name if meant in known else meant)
        raise RequestError(
            "model",
            name,
            f"a model of 'deepvm performance models'{which}; yours: --model FILE.yaml (see 'deepvm"
            " help models'), or --params 7B for a transformer",
        )
    return known[wanted]


def model_of_size(text: str | float, sequence: int | None = None) -> Model:
    """A language model of so many parameters, ``7B`` or a number; raises a RequestError."""
    parameters = _parse_count(
        text, "params", "parameters from 100k to 10T, such as 7B or 350M", 1e5, 1e13
    )
    length = sequence or _SEQUENCE
    letters = {"T": 1e12, "B": 1e9, "M": 1e6, "k": 1e3}
    letter, factor = next(item for item in letters.items() if parameters >= item[1])
    return Model(
        name=f"{parameters / factor:.4g}{letter} parameters",
        family="transformer",
        parameters=parameters,
        unit="tokens",
        sequence=length,
        transformer=Transformer.of_size(parameters),
        batch=max(1, _TOKENS_AT_ONCE // length),
        source="the usual shape of a language model of this size, 12 layers x hidden^2",
    )


def _parse_count(text: str | float, option: str, allowed: str, least: float, most: float) -> float:
    value = 0.0
    if isinstance(text, str):
        if match := _COUNT.fullmatch(text):
            factor = _FACTORS.get(match[2].lower().removesuffix("s"), 0.0)
            value = float(match[1].replace(",", "")) * factor
    elif not isinstance(text, bool):
        value = float(text)
    if not least <= value <= most:
        raise RequestError(option, text, allowed)
    return value


def _read_model(path: str) -> Model:
    from deepvm.documents.inputs.model import MODEL  # pydantic is slow to load

    file = Path(path)
    values = MODEL.read(file).model_dump(exclude_none=True)
    layers, hidden, vocabulary, gated = (values.pop(key, None) for key in _SHAPE)
    values.setdefault("name", file.stem)
    if values["name"] in presets():
        # A name of its own: published runs of the preset must not count for the user's model.
        values["name"] += f" ({file.name})"
    values.setdefault("unit", "tokens" if layers else "images")
    values.setdefault("source", f"{file.name}, given by the user")
    shape = None
    if layers:
        if values["unit"] == "tokens":
            values.setdefault("sequence", _SEQUENCE)
            values.setdefault("batch", max(1, _TOKENS_AT_ONCE // values["sequence"]))
            # Nearly all language models are gated today; and they need more memory.
            gated = gated is not False
        shape = Transformer(layers, hidden, vocabulary or 0, bool(gated))
    values.setdefault("family", "transformer" if shape else "convolution")
    return Model(**values, transformer=shape)


def read_workload(
    *,
    model: str | Model = "",
    params: str | float | None = None,
    seq: str | int | None = None,
    method: str = AUTO,
    precision: str = Precision.AUTO.value,
    batch_per_gpu: str | int | None = None,
    global_batch: str | int | None = None,
    activation_checkpointing: bool | None = None,
    **amount: Any,
) -> Workload:
    """Read options of :class:`deepvm.core.options.AmountOptions`."""
    if model and params is not None:
        raise OptionMismatchError.with_other("model", model, "--params")
    if not model and params is None:
        raise RequestError("model", "", "a model such as llama-8b, or --params 7B")
    if batch_per_gpu is not None and global_batch is not None:
        raise OptionMismatchError.with_other("global_batch", global_batch, "--batch-per-gpu")
    length = None
    if seq is not None:
        length = whole(_MOST)(seq, "seq")
    if params is not None:
        trained = model_of_size(params, length)
    else:
        trained = _model(model, length)
    batch: float = trained.batch
    scaling = Scaling.WEAK
    if batch_per_gpu is not None:
        batch = whole(_MOST)(batch_per_gpu, "batch_per_gpu")
    elif global_batch is not None:
        batch = whole(_MOST)(global_batch, "global_batch")
        scaling = Scaling.STRONG
    return Workload(
        model=trained,
        method=_method(method, trained),
        precision=one_of_kind(Precision)(precision, "precision"),
        batch=batch,
        scaling=scaling,
        checkpointing=activation_checkpointing,
        samples=_samples(trained, **amount),
    )


def _method(name: str, model: Model) -> Method:
    if name == AUTO:
        if model.parameters >= SHARDED_FROM:
            return Method.FSDP
        return Method.DDP
    if name in NOT_MODELED:
        raise RequestError("method", name, f"auto, ddp, fsdp or lora; {WHAT_IS_MODELED}")
    method: Method = one_of_kind(Method)(name, "method")
    if method is Method.LORA and model.transformer is None:
        raise RequestError("method", name, f"ddp or fsdp: {model.name} is no transformer")
    return method


def _model(model: str | Model, length: int | None) -> Model:
    if isinstance(model, str):
        if Path(model).suffix.lower() in (".yaml", ".yml", ".json"):
            model = _read_model(model)
        else:
            model = find_model(model)
    if length is None or length == model.sequence:
        return model
    longer = model.with_sequence(length)
    if longer.unit != "tokens":
        return longer
    # As many tokens at once: the model's batch is for its own sequence.
    return replace(longer, batch=max(1, round(model.batch * model.sequence / length)))


def _samples(
    model: Model,
    tokens: Any = None,
    samples: Any = None,
    epochs: Any = None,
    dataset_size: Any = None,
) -> float | None:
    amount = {"tokens": tokens, "samples": samples, "epochs": epochs, "dataset_size": dataset_size}
    given = {name: value for name, value in amount.items() if value is not None}
    first, *others = [name for name in given if name != "dataset_size"] or [""]
    if others:
        raise OptionMismatchError.with_other(others[0], given[others[0]], f"--{first}")
    if ("epochs" in given) != ("dataset_size" in given):
        name, other = "epochs", "--dataset-size 1.28M"
        if "dataset_size" in given:
            name, other = "dataset_size", "--epochs 90"
        reason = f"needs {other.partition(' ')[0]}, too"
        raise OptionMismatchError(name, given[name], reason, f"with {other}")
    allowed = "a number above 0, such as 2.5, 300k, 50M or 2B"
    counts = {name: _parse_count(value, name, allowed, 1e-6, 1e18) for name, value in given.items()}
    if first == "tokens" and model.unit != "tokens":
        reason = f"does not fit {model.name}, which trains on {model.unit}"
        raise OptionMismatchError(
            first, given[first], reason, f"--samples {given[first]}, or --model llama-8b"
        )
    if first in ("", "samples"):
        return counts.get(first)
    return counts[first] * counts.get("dataset_size", 1.0) / model.units_per_sample
