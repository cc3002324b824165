"""AWS's vCPU quotas: their codes, and which types count against which quota.

Source: AWS's Service Quotas documentation, "Amazon EC2 service quotas", as of 2026. There is one
quota for each family and market in each region; High Memory and HPC types have no spot market.
"""

from __future__ import annotations

import re

from deepvm.catalog.signals.cloud import QuotaName
from deepvm.core.cluster.instances import Market

_STANDARD = "Standard"
# Name, codes on demand and on the spot market, and the letters before the first digit of a type's
# name. Other families (mac: Dedicated Hosts only) count as Standard, as AWS charges new ones until
# it says otherwise.
_TABLE = (
    (_STANDARD, "L-1216C47A", "L-34B43A08", ()),
    ("G and VT", "L-DB2E81BA", "L-3819A6DF", ("g", "gr", "vt")),
    ("P", "L-417A185B", "L-7212CCBC", ("p",)),
    ("X", "L-7295265B", "L-E3A00192", ("x",)),
    ("F", "L-74FC7D96", "L-88CF9481", ("f",)),
    ("Inf", "L-1945791B", "L-B5D1601B", ("inf",)),
    ("Trn", "L-2C3B7624", "L-6B0D517C", ("trn",)),
    ("DL", "L-6E869C2A", "L-85EED4F7", ("dl",)),
    ("High Memory", "L-43DA4232", "", ("u",)),
    ("HPC", "L-F7808C92", "", ("hpc",)),
)


QUOTA_NAMES: dict[tuple[str, Market], QuotaName] = {}
for _name, _on_demand, _spot, _ in _TABLE:
    if _name == _STANDARD:
        _covers = f"{_name} (A, C, D, H, I, M, R, T, Z)"
    else:
        _covers = _name
    if _spot:
        QUOTA_NAMES[_name, Market.SPOT] = QuotaName(_spot, f"All {_covers} Spot Instance Requests")
    QUOTA_NAMES[_name, Market.ON_DEMAND] = QuotaName(
        _on_demand, f"Running On-Demand {_covers} instances"
    )

_BY_LETTERS = {letters: name for name, _, _, group in _TABLE for letters in group}


def quota_family(name: str) -> str:
    """The family whose quota a type's vCPUs count against.

    By AWS's naming: ``Standard``, ``G and VT``, ``P`` ...
    """
    letters = re.match(r"[a-z]*", name)
    return _BY_LETTERS.get(letters[0] if letters else "", _STANDARD)
