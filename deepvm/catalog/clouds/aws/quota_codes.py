"""AWS's vCPU quotas: which family of types counts against which quota, and the code by which AWS knows it.

Source: AWS's Service Quotas documentation, "Amazon EC2 service quotas", as of 2026. There is one quota for each family
and market in each region; High Memory and HPC types have no spot market.
"""

from __future__ import annotations

import re

from deepvm.catalog.signals.cloud import QuotaFamily


def _family(name: str, on_demand_code: str, spot_code: str, letters: str = "") -> QuotaFamily:
    covers = f"{name} {letters}".strip()
    on_demand, spot = f"Running On-Demand {covers} instances", f"All {covers} Spot Instance Requests"
    return QuotaFamily(name, on_demand_code, spot_code, on_demand, spot if spot_code else "")


FAMILIES = {
    f.name: f
    for f in (
        _family("Standard", "L-1216C47A", "L-34B43A08", "(A, C, D, H, I, M, R, T, Z)"),
        _family("G and VT", "L-DB2E81BA", "L-3819A6DF"),
        _family("P", "L-417A185B", "L-7212CCBC"),
        _family("X", "L-7295265B", "L-E3A00192"),
        _family("F", "L-74FC7D96", "L-88CF9481"),
        _family("Inf", "L-1945791B", "L-B5D1601B"),
        _family("Trn", "L-2C3B7624", "L-6B0D517C"),
        _family("DL", "L-6E869C2A", "L-85EED4F7"),
        _family("High Memory", "L-43DA4232", ""),
        _family("HPC", "L-F7808C92", ""),
    )
}

# The letters before the first digit of a type's name. Families that are not here (mac: Dedicated Hosts only) count as
# Standard, which is what AWS charges new families against until it says otherwise.
_BY_LETTERS = {
    **dict.fromkeys(("g", "gr", "vt"), "G and VT"),
    "p": "P",
    "x": "X",
    "f": "F",
    "inf": "Inf",
    "trn": "Trn",
    "dl": "DL",
    "u": "High Memory",
    "hpc": "HPC",
}


def quota_family(name: str) -> str:
    """The family whose quota a type's vCPUs count against, by AWS's naming: ``Standard``, ``G and VT``, ``P`` ..."""
    letters = re.match(r"[a-z]*", name)
    return _BY_LETTERS.get(letters[0] if letters else "", "Standard")
