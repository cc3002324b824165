"""Presets: the models that people train, and models by their size alone."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from deepvm.core.meanings import meant_model, size_of_model
from deepvm.core.spelling import examples, nearest
from deepvm.core.training.model import Model, Transformer
from deepvm.errors import RequestError
from deepvm.io.user_dirs import data_folder

_SIZE = re.compile(
    r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,2})?)\s*([kmbt]?)\s*",
    re.ASCII | re.IGNORECASE,
)
_COUNT_WORDS = {
    "thousand": "k",
    "million": "M",
    "mio": "M",
    "billion": "B",
    "bn": "B",
    "g": "B",
    "trillion": "T",
}
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
SEQUENCE = 2048
"""Tokens of a sample unless the user says."""
TOKENS_AT_ONCE = 16_384
"""Of each GPU and step for a model of which no batch is known."""
LEAST, MOST = 1e5, 1e13
SHAPE = ("layers", "hidden", "vocabulary", "gated")
"""Of an entry: the fields of :class:`Transformer`."""


@lru_cache(maxsize=1)
def presets() -> dict[str, Model]:
    """The models by name, in the order of the file.

    Other names of a model come after all of them.
    """
    raw = json.loads((data_folder() / "performance" / "models.json").read_text(encoding="utf-8"))[
        "models"
    ]
    found = {entry["name"]: _model(entry) for entry in raw}
    return found | {
        alias: found[entry["name"]] for entry in raw for alias in entry.get("aliases", ())
    }


def _model(entry: dict[str, Any]) -> Model:
    shape = Transformer(**{k: entry[k] for k in SHAPE if k in entry}) if "layers" in entry else None
    values = {k: v for k, v in entry.items() if k not in (*SHAPE, "aliases")}
    return Model(**values, transformer=shape)


def find_model(name: str) -> Model:
    """A preset by name; raises a RequestError for an unknown one."""
    known = presets()
    wanted = name.strip().casefold()
    if wanted not in known:
        size, meant = size_of_model(wanted), meant_model(wanted, known)
        if (
            size
            and not meant
            and not any(size.casefold() in near for near in nearest(wanted, known, 3))
        ):
            meant = f"--params {size}"
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
    """Read a number such as ``2e9`` or ``2B``.

    Raises a RequestError for anything else and outside the bounds.
    """
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    value = float(match[1]) * _FACTORS[match[2].lower()] if match else text
    if isinstance(value, (bool, str)) or not least <= value <= most:
        meant = _meant_count(text) if isinstance(text, str) else 0.0
        hint = (
            f"; did you mean {short(meant)}?"
            if least <= meant <= most and short(meant) != text
            else ""
        )
        raise RequestError(option, text, allowed + hint)
    return float(value)


def _meant_count(text: str) -> float:
    """What ``2 billion`` and ``2,000,000`` mean; 0 when nobody can tell."""
    match = re.fullmatch(
        r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+\.?[0-9]*) ?([a-z]*)", text.strip().casefold()
    )
    if match is None:
        return 0.0
    number, word = match.groups()
    letter = _COUNT_WORDS.get(word.removesuffix("s"), word)
    return float(number.replace(",", "")) * _FACTORS.get(letter.casefold(), 0.0)


def short(count: float) -> str:
    """``7B``, ``350M``."""
    for letter, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.4g}{letter}"
    return f"{count:.4g}"
