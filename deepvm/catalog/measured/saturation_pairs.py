"""Merge n_sat measured between two types into a catalog's table of n_sat by bandwidth (DeepVM Table V).

The planner looks n_sat up by the bandwidth that the catalog gives both types, min(sender, receiver), so the row of a
pair stands there, whatever bandwidth was seen: one stream of a 25 Gbit/s VM may reach 5, and a row at 5 would never
count for the pair itself. Where the catalog does not know an end, the document's bandwidth counts.

n_sat never falls as bandwidth grows. A measured knee replaces the published row of its bandwidth; rows of less
bandwidth with a larger n_sat come down to it, rows of more bandwidth with a smaller one go. Of measured rows that
contradict each other the smaller holds: it only asks for more memory nodes. Where t(n) kept falling up to N senders,
n_sat is at least N: such a measurement lifts a row and never lowers one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from deepvm.catalog.measured.entries import Applied, Entry
from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.memory_nodes import MemoryNodeRule
from deepvm.core.cluster.saturation import SaturationTable


def apply_pairs(applied: Applied, entries: Sequence[Entry], known: Catalog) -> None:
    """Merge measured n_sat into a catalog's table; the types of ``known``, in whatever region, give the bandwidths."""
    catalog = applied.catalog
    knees: dict[float, tuple[int, Entry]] = {}
    bounds: list[tuple[float, int, Entry]] = []
    for entry in entries:
        if not {entry.sender_type, entry.receiver_type} & known.by_name.keys():
            continue
        gbps = _bandwidth(entry, known, catalog.memory_nodes)
        senders, seen = entry.senders
        if gbps is None:
            applied.note(f"n_sat of {entry.subject} is not used: nobody knows the bandwidth of the pair", entry)
        elif not seen:
            bounds.append((gbps, senders, entry))
        elif gbps not in knees or senders < knees[gbps][0]:
            knees[gbps] = (senders, entry)
    own = {gbps: min(senders for g, (senders, _) in knees.items() if g >= gbps) for gbps in knees}
    published = dict(zip(catalog.n_sat.network_gbps, map(int, catalog.n_sat.n_sat), strict=True))
    table = _merged(published, own, applied)
    applied.used += [e for _, e in knees.values()]
    for gbps, senders, entry in sorted(bounds, key=lambda b: (b[0], -b[1])):
        now = int(SaturationTable.from_rows(list(table.items())).lookup(gbps))
        lifted = min([senders, *(n for g, n in own.items() if g >= gbps)])
        if lifted <= now:
            applied.note(
                f"n_sat of {entry.subject} stays {now}: no saturation was seen up to {senders} senders; measure with "
                "more to know it",
                entry,
            )
            continue
        own[gbps] = lifted
        table = _merged(table, own, applied)
        applied.used.append(entry)
    applied.catalog = replace(catalog, n_sat=SaturationTable.from_rows(list(table.items())))


def _merged(published: Mapping[float, int], own: Mapping[float, int], applied: Applied) -> dict[float, int]:
    """Measured rows, and the published rows that agree with them."""
    table = dict(own)
    for gbps, n in published.items():
        below = max((m for g, m in own.items() if g < gbps), default=0)
        above = min((m for g, m in own.items() if g > gbps), default=n)
        if gbps in own:
            continue
        if n < below:
            applied.note(f"n_sat {n} at {gbps:g} Gbit/s gives way: {below} was measured here at less bandwidth")
            continue
        if n > above:
            what = f"n_sat at {gbps:g} Gbit/s comes down from {n} to {above}"
            applied.note(f"{what}, measured here at more bandwidth")
        table[gbps] = min(n, above)
    return table


def _bandwidth(entry: Entry, known: Catalog, rule: MemoryNodeRule) -> float | None:
    """Gbit/s of a pair, min(sender, receiver), None if unknown."""
    sender, receiver = (known.by_name.get(name) for name in (entry.sender_type, entry.receiver_type))
    ends = {
        "sender_gbps": sender.network_gbps if sender else None,
        "receiver_gbps": receiver.memory_node_gbps(rule) if receiver else None,
    }
    found = [entry.document.get(side) if gbps is None else gbps for side, gbps in ends.items()]
    known_ends = [float(gbps) for gbps in found if gbps is not None]
    return min(known_ends) if len(known_ends) == 2 else None
