"""AWS's vCPU quotas of ``data/aws/quotas.json``, and which types count against which quota."""

import re
from typing import Any

from deepvm.catalog.signals.cloud import QuotaName
from deepvm.core.cluster.instances import Market
from deepvm.io.user_dirs import read_data

_TABLE: Any = read_data("aws/quotas.json")

QUOTA_NAMES = {
    (row["family"], Market(row["market"])): QuotaName(row["code"], row["title"])
    for row in _TABLE["quotas"]
}


def quota_family(name: str) -> str:
    """The family whose quota a type's vCPUs count against: ``Standard``, ``G and VT``, ``P`` ..."""
    letters = re.match(r"[a-z]*", name)
    family: str = _TABLE["letters"].get(letters[0] if letters else "", "Standard")
    return family
