"""A catalog for whoever may use one zone only."""

from __future__ import annotations

from dataclasses import replace

from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.errors import RequestError


def zones_of(catalog: Catalog) -> dict[str, str]:
    """The zones that a catalog tells of, by id, with their names in the user's account where it has them."""
    ids = {zone: "" for i in catalog for zone in i.zones}
    named = {z.zone: z.name for i in catalog for z in i.spot_zones}
    return dict(sorted((ids | named).items()))


def within_zone(catalog: Catalog, zone: str) -> Catalog:
    """The types that are sold in one zone, at its spot prices; what is not sold there is kept in ``Catalog.absent``.

    The zone is named by id, or by its name in the user's account. A type whose zones are unknown may be anywhere and
    stays as it is, and so does a catalog that tells of no zones.

    Raises:
        RequestError: the catalog knows zones, and not this one.
    """
    known = zones_of(catalog)
    if not known:
        return catalog
    wanted = zone if zone in known else next((i for i, name in known.items() if name == zone), "")
    if not wanted:
        listed = ", ".join(f"{i} ({name})" if name else i for i, name in known.items())
        raise RequestError("zone", zone, f"a zone of catalog {catalog.name}: {listed}")
    kept, absent = [], dict(catalog.absent)
    for instance in catalog:
        there = _in(instance, wanted)
        if there is None:
            absent[instance.name] = f"{instance.name} is not offered in zone {wanted}"
        else:
            kept.append(there)
    if not kept:
        raise RequestError("zone", zone, "a zone in which something is offered")
    return replace(catalog, instances=tuple(kept), absent=absent)


def _in(instance: InstanceType, zone: str) -> InstanceType | None:
    """The type in a zone, None where it is not sold there at all."""
    spot = tuple(z for z in instance.spot_zones if z.zone == zone)
    if instance.zones and zone not in instance.zones and not spot:
        return None
    if not instance.spot_zones:
        return instance
    price = spot[0].usd_per_hour if spot else None
    if price is None and instance.on_demand_usd_per_hour is None:
        return None
    return replace(instance, spot_zones=spot, spot_usd_per_hour=price)
