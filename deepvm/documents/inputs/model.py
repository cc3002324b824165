"""A user's model, in a YAML or JSON file: the figures of a preset."""

from deepvm.core.json_types import JsonObject
from deepvm.documents.formats import yaml
from deepvm.documents.models import by_values, model_of
from deepvm.documents.reader import FileFormat, Rules

_FAR = 4.0  # How many times more or fewer parameters than 12 layers hidden^2 a transformer may have


def _rules(model: JsonObject) -> Rules:
    layers, hidden = model["layers"], model["hidden"]
    shaped = [size for size in (layers, hidden) if size is not None]
    counted = [key for key in ("forward_flop", "activation_bytes") if model[key]]
    if len(shaped) + len(counted) != 2 or len(shaped) == 1:
        yield (
            ("layers",),
            "expected layers and hidden (a transformer), or forward_flop and activation_bytes of"
            " one sample",
        )
    elif shaped:
        usual = (12 * layers * hidden + (model["vocabulary"] or 0)) * hidden
        parameters = model["parameters"]
        if not usual / _FAR <= parameters <= usual * _FAR:
            yield (
                ("parameters",),
                f"{parameters:g} (expected about {usual:.1e} with these layers and this"
                " hidden size; mixtures of experts are not modeled)",
            )


MODEL = FileFormat(
    model_of("model_file.ModelDocument"),
    "a model file with parameters and either layers and hidden, or forward_flop and"
    " activation_bytes",
    yaml.load,
    by_values(_rules),
)
