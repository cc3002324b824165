"""Presets: the models that people train, and models by their size alone."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from deepvm.core.meanings import meant_model
from deepvm.core.spelling import examples
from deepvm.core.training.model import Model, Transformer
from deepvm.errors import RequestError
from deepvm.io.user_dirs import read_data

_COUNT = re.compile(
    r"\s*([0-9]{1,3}(?:,[0-9]{3})+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,2})?)\s*([a-z]*)\s*",
    re.ASCII | re.IGNORECASE,
)
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_FACTORS |= {"thousand": 1e3, "million": 1e6, "mio": 1e6}
_FACTORS |= {"billion": 1e9, "bn": 1e9, "trillion": 1e12}
SEQUENCE = 2048
"""Tokens of a sample unless the user says."""
TOKENS_AT_ONCE = 16_384
"""Of each GPU and step for a model of which no batch is known."""
LEAST = 1e5
MOST = 1e13
SHAPE = ("layers", "hidden", "vocabulary", "gated")
"""Of an entry: the fields of :class:`Transformer`."""


@lru_cache(maxsize=1)
def presets() -> dict[str, Model]:
    """The models by name, in the order of the file.

    Other names of a model come after all of them.
    """
    raw = read_data("performance/models.json")["models"]
    found = {entry["name"]: _model(entry) for entry in raw}
    return found | {
        alias: found[entry["name"]] for entry in raw for alias in entry.get("aliases", ())
    }


def _model(entry: dict[str, Any]) -> Model:
    shape = None
    if "layers" in entry:
        shape = Transformer(**{k: entry[k] for k in SHAPE if k in entry})
    values = {k: v for k, v in entry.items() if k not in (*SHAPE, "aliases")}
    return Model(**values, transformer=shape)


def find_model(name: str) -> Model:
    """A preset by name; raises a RequestError for an unknown one."""
    known = presets()
    wanted = name.strip().casefold()
    if wanted not in known:
        meant = meant_model(wanted, known)
        which = examples(wanted, known, known[meant].name if meant in known else meant)
        also = "--params 7B describes any other transformer by its size"
        raise RequestError("model", name, f"a model of 'deepvm performance models'{which}; {also}")
    return known[wanted]


def model_of_size(text: str | float, sequence: int | None = None) -> Model:
    """A language model of so many parameters, ``7B`` or a number; raises a RequestError."""
    parameters = parse_count(
        text, "params", "parameters from 100k to 10T, such as 7B or 350M", LEAST, MOST
    )
    length = sequence or SEQUENCE
    return Model(
        name=f"{short(parameters)} parameters",
        family="transformer",
        parameters=parameters,
        unit="tokens",
        sequence=length,
        transformer=Transformer.of_size(parameters),
        batch=max(1, TOKENS_AT_ONCE // length),
        source="the usual shape of a language model of this size, 12 layers x hidden^2",
    )


def parse_count(text: str | float, option: str, allowed: str, least: float, most: float) -> float:
    """Read a number such as ``2e9``, ``2B``, ``2 billion`` or ``2,000,000``.

    Raises a RequestError for anything else and outside the bounds.
    """
    value = _count(text)
    if value is None or not least <= value <= most:
        raise RequestError(option, text, allowed)
    return value


def _count(text: str | float) -> float | None:
    if not isinstance(text, str):
        if isinstance(text, bool):
            return None
        return float(text)
    match = _COUNT.fullmatch(text)
    factor = None
    if match:
        factor = _FACTORS.get(match[2].lower().removesuffix("s"))
    if match is None or factor is None:
        return None
    return float(match[1].replace(",", "")) * factor


def short(count: float) -> str:
    """``7B``, ``350M``."""
    for letter, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.4g}{letter}"
    return f"{count:.4g}"
