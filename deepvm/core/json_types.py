"""Names for the types of decoded JSON objects."""

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = Mapping[str, Any]  # A JSON object that is only read
JsonDict: TypeAlias = dict[str, Any]  # A JSON object that its owner may change
