"""A user's model, from a .yaml or .json file."""

from __future__ import annotations

from pathlib import Path

from deepvm.catalog.published.models import SHAPE, TOKENS_AT_ONCE, presets
from deepvm.core.training.model import Model, Transformer


def is_file_name(text: str) -> bool:
    """Whether a model is given as a file."""
    return Path(text).suffix.lower() in (".yaml", ".yml", ".json")


def read_model(path: str) -> Model:
    """Read a model. Raises CatalogFormatError."""
    from deepvm.documents.inputs.model import MODEL  # pydantic is slow to load

    file = Path(path)
    document = MODEL.read(file)
    values = document.model_dump(exclude_none=True, exclude=set(SHAPE))
    unit = document.unit or ("tokens" if document.layers else "images")
    values.setdefault("name", file.stem)
    if values["name"] in presets():
        # What was published of that one says little about this one.
        values["name"] += f" ({file.name})"
    values["unit"] = unit
    values.setdefault("source", f"{file.name}, given by the user")
    if not document.layers or not document.hidden:
        values.setdefault("family", "convolution")
        values.setdefault("sequence", 1)
        return Model(**values)
    values.setdefault("family", "transformer")
    gated = document.gated
    if unit == "tokens":
        values.setdefault("sequence", 2048)
        values.setdefault("batch", max(1, TOKENS_AT_ONCE // values["sequence"]))
        if gated is None:
            # Nearly all language models are, today; and they need more memory.
            gated = True
    values.setdefault("sequence", 1)
    shape = Transformer(document.layers, document.hidden, document.vocabulary or 0, bool(gated))
    return Model(**values, transformer=shape)
