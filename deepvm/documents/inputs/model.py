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


def _from(least: float, largest: float) -> Any:
    return Field(None, ge=least, le=largest)


Parameters = Annotated[Number, BeforeValidator(_in_full)]
Amount = Parameters | None
Count = Annotated[Whole, BeforeValidator(_in_full)] | None
Words = Annotated[str, Field(min_length=1, max_length=200)] | None


class ModelDocument(Strict):
    """See docs/reference/model-file.md."""

    name: Words = None
    family: Literal["transformer", "convolution", "diffusion"] | None = None
    unit: Literal["tokens", "images", "samples"] | None = None
    parameters: Parameters = Field(
        ge=1e3, le=1e14, description="the number of parameters, such as 7.0e9, from 1e3 to 1e14"
    )
    sequence: Count = _from(1, 1e7)
    layers: Count = _from(1, 1e4)
    hidden: Count = _from(1, 1e6)
    vocabulary: Count = _from(0, 1e8)
    forward_flop: Amount = _from(1, 1e20)
    activation_bytes: Amount = _from(1, 1e15)
    traffic_bytes: Amount = _from(0, 1e15)
    reads_per_vcpu: Amount = _from(1e-6, 1e9)
    batch: Count = _from(1, 1e7)
    gated: bool | None = None
    source: Words = None


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
