"""A model of one's own, in a .yaml or .json file: the figures of a preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepvm.catalog.published.models import SHAPE, TOKENS_AT_ONCE, parse_count, presets
from deepvm.core.spelling import did_you_mean
from deepvm.core.training.model import FAMILIES, Model, Transformer
from deepvm.errors import CatalogFormatError, Problem, RequestError
from deepvm.io.safe_read import read_text

_WANTED = (
    "give a model file with parameters and either layers and hidden, or forward_flop and"
    " activation_bytes"
)


@dataclass(frozen=True)
class _Number:
    """A key with a number: its bounds, and whether it must be whole."""

    least: float
    most: float
    whole: bool = False

    @property
    def allowed(self) -> str:
        return f"a {'whole ' if self.whole else ''}number from {self.least:g} to {self.most:g}"

    def fits(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return self.least <= value <= self.most and (not self.whole or value == int(value))


_NUMBERS: Mapping[str, _Number] = {
    "parameters": _Number(1e3, 1e14),
    "sequence": _Number(1, 1e7, whole=True),
    "layers": _Number(1, 1e4, whole=True),
    "hidden": _Number(1, 1e6, whole=True),
    "vocabulary": _Number(0, 1e8, whole=True),
    "forward_flop": _Number(1, 1e20),
    "activation_bytes": _Number(1, 1e15),
    "traffic_bytes": _Number(0, 1e15),
    "reads_per_vcpu": _Number(1e-6, 1e9),
    "batch": _Number(1, 1e7, whole=True),
}
_WORDS = {"family": FAMILIES, "unit": ("tokens", "images", "samples")}
_KEYS = ("name", *_WORDS, *_NUMBERS, "gated", "source")
_FAR = 4.0
"""How many times more or fewer parameters than the usual 12 layers hidden^2 a transformer may have."""


def is_file_name(text: str) -> bool:
    """Whether a model is given as a file."""
    return Path(text).suffix.lower() in (".yaml", ".yml", ".json")


def read_model(path: str) -> Model:
    """Read a model; raises a CatalogFormatError that names each problem with its key."""
    file = Path(path)
    try:
        text = read_text(file, _WANTED)
    except FileNotFoundError:
        raise CatalogFormatError(file, [Problem("file", "does not exist", _WANTED)]) from None
    raw = _parsed(text, file)
    problems = list(_problems(raw))
    if problems:
        raise CatalogFormatError(file, problems)
    whole = {key for key, number in _NUMBERS.items() if number.whole}
    values: dict[str, Any] = {
        key: int(value) if key in whole else value for key, value in raw.items() if key not in SHAPE
    }
    shape = None
    if "layers" in raw:
        # Nearly all language models are, today; and they need more memory.
        gated = raw.get("gated", raw.get("unit", "tokens") == "tokens")
        shape = Transformer(
            int(raw["layers"]), int(raw["hidden"]), int(raw.get("vocabulary", 0)), gated
        )
    name = values.setdefault("name", file.stem)
    if name in presets():  # what was published of that one says little about this one
        values["name"] = f"{name} ({file.name})"
    values.setdefault("family", "transformer" if shape else "convolution")
    values.setdefault("unit", "tokens" if shape else "images")
    values.setdefault("sequence", 2048 if shape and values["unit"] == "tokens" else 1)
    if shape and values["unit"] == "tokens":
        values.setdefault("batch", max(1, TOKENS_AT_ONCE // values["sequence"]))
    values.setdefault("source", f"{file.name}, given by the user")
    return Model(**values, transformer=shape)


def _parsed(text: str, file: Path) -> Mapping[str, Any]:
    import yaml  # slow to load; JSON is YAML, too

    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CatalogFormatError(file, [Problem("file", f"not YAML: {error}", _WANTED)]) from None
    if not isinstance(raw, dict):
        raise CatalogFormatError(
            file, [Problem("file", f"holds {type(raw).__name__}, no keys", _WANTED)]
        )
    return {
        key: _number(value) if key in _NUMBERS and isinstance(value, str) else value
        for key, value in raw.items()
    }


def _number(text: str) -> Any:
    """A number that YAML takes for text, such as 7e9 or 7B; what is none stays text."""
    try:
        return parse_count(text, "number", "", 0, 1e20)
    except RequestError:
        return text


def _problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in raw.items():
        if key not in _KEYS:
            meant = did_you_mean(str(key), _KEYS)
            yield Problem(
                str(key),
                "unknown key",
                f"allowed: {', '.join(_KEYS)}{f'; {meant}' if meant else ''}",
            )
        elif key in _NUMBERS and not _NUMBERS[key].fits(value):
            yield Problem(key, repr(value), f"allowed: {_NUMBERS[key].allowed}")
        elif key in _WORDS and value not in _WORDS[key]:
            yield Problem(key, repr(value), f"allowed: {' or '.join(_WORDS[key])}")
        elif key == "gated" and not isinstance(value, bool):
            yield Problem(key, repr(value), "allowed: true or false")
        elif key in ("name", "source") and not (isinstance(value, str) and 0 < len(value) <= 200):
            yield Problem(key, repr(value), "allowed: text of up to 200 characters")
    if "parameters" not in raw:
        yield Problem("parameters", "missing", "allowed: how many the model has, such as 7.0e9")
    shaped = [key for key in SHAPE[:2] if key in raw]
    counted = [key for key in ("forward_flop", "activation_bytes") if key in raw]
    if len(shaped) == 2 and not counted:
        yield from _shape_problems(raw)
        return
    if shaped or len(counted) != 2:
        both = (
            "allowed: layers and hidden (a transformer), or forward_flop and activation_bytes of"
            " one sample"
        )
        yield Problem("layers", f"found {', '.join([*shaped, *counted]) or 'neither'}", both)


def _shape_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """A shape that cannot have so many parameters: a slip in one of the two."""
    wanted = [raw.get(key) for key in ("parameters", "layers", "hidden")]
    if not all(_NUMBERS["forward_flop"].fits(value) for value in wanted):
        return  # said already
    parameters, layers, hidden = (float(value) for value in wanted if value is not None)
    vocabulary = raw.get("vocabulary", 0)
    usual = (
        12 * layers * hidden**2
        + (vocabulary if isinstance(vocabulary, (int, float)) else 0) * hidden
    )
    if not usual / _FAR <= parameters <= usual * _FAR:
        allowed = (
            f"about {usual:.1e} with these layers and this hidden size; mixtures of experts are not"
            " modelled"
        )
        yield Problem("parameters", f"{parameters:g}", f"allowed: {allowed}")
