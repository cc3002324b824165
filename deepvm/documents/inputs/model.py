"""A user's model, in a YAML or JSON file: the figures of a preset."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from deepvm.documents.fields import Number, Strict, Whole
from deepvm.documents.formats import yaml
from deepvm.documents.reader import FileFormat, Rules

_SHORT = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_FAR = 4.0
"""How many times more or fewer parameters than 12 layers hidden^2 a transformer may have."""


def _in_full(value: object) -> object:
    """``7B`` is 7e9."""
    if isinstance(value, str) and value[-1:].lower() in _SHORT:
        return float(value[:-1]) * _SHORT[value[-1].lower()]
    return value


def _number(least: float, largest: float, what: str = "a number") -> Any:
    text = f"{what} from {least:g} to {largest:g}"
    return Field(None, ge=least, le=largest, description=text)


def _count(least: float, largest: float) -> Any:
    return _number(least, largest, "a whole number")


def _one_of(*words: str) -> Any:
    return Field(None, description=" or ".join(words))


Amount = Annotated[Number, BeforeValidator(_in_full)] | None
Count = Annotated[Whole, BeforeValidator(_in_full)] | None
Words = Annotated[str, Field(min_length=1, max_length=200)] | None


class ModelDocument(Strict):
    """See docs/reference/model-file.md."""

    name: Words = Field(None, description="text of up to 200 characters")
    family: Literal["transformer", "convolution", "diffusion"] | None = _one_of(
        "transformer", "convolution", "diffusion"
    )
    unit: Literal["tokens", "images", "samples"] | None = _one_of("tokens", "images", "samples")
    parameters: Annotated[Number, BeforeValidator(_in_full)] = Field(
        ge=1e3, le=1e14, description="the number of parameters, such as 7.0e9, from 1e3 to 1e14"
    )
    sequence: Count = _count(1, 1e7)
    layers: Count = _count(1, 1e4)
    hidden: Count = _count(1, 1e6)
    vocabulary: Count = _count(0, 1e8)
    forward_flop: Amount = _number(1, 1e20)
    activation_bytes: Amount = _number(1, 1e15)
    traffic_bytes: Amount = _number(0, 1e15)
    reads_per_vcpu: Amount = _number(1e-6, 1e9)
    batch: Count = _count(1, 1e7)
    gated: bool | None = Field(None, description="true or false")
    source: Words = Field(None, description="text of up to 200 characters")


def _rules(model: ModelDocument) -> Rules:
    shaped = [key for key in ("layers", "hidden") if getattr(model, key) is not None]
    counted = [key for key in ("forward_flop", "activation_bytes") if getattr(model, key)]
    if len(shaped) + len(counted) != 2 or len(shaped) == 1:
        yield (
            ("layers",),
            "expected layers and hidden (a transformer), or forward_flop and activation_bytes of"
            " one sample",
        )
    elif model.layers and model.hidden:
        usual = (12 * model.layers * model.hidden + (model.vocabulary or 0)) * model.hidden
        if not usual / _FAR <= model.parameters <= usual * _FAR:
            yield (
                ("parameters",),
                f"{model.parameters:g} (expected about {usual:.1e} with these layers and this"
                " hidden size; mixtures of experts are not modelled)",
            )


MODEL = FileFormat(
    ModelDocument,
    "a model file with parameters and either layers and hidden, or forward_flop and"
    " activation_bytes",
    yaml.load,
    _rules,
)
