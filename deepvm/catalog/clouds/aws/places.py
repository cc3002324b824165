"""Where AWS's regions are, and what people call them elsewhere."""

from __future__ import annotations

import re

PLACES = {
    "us-east-1": "N. Virginia",
    "us-east-2": "Ohio",
    "us-west-1": "N. California",
    "us-west-2": "Oregon",
    "af-south-1": "Cape Town",
    "ap-east-1": "Hong Kong",
    "ap-northeast-1": "Tokyo",
    "ap-northeast-2": "Seoul",
    "ap-northeast-3": "Osaka",
    "ap-south-1": "Mumbai",
    "ap-south-2": "Hyderabad",
    "ap-southeast-1": "Singapore",
    "ap-southeast-2": "Sydney",
    "ap-southeast-3": "Jakarta",
    "ap-southeast-4": "Melbourne",
    "ap-southeast-5": "Malaysia",
    "ap-southeast-7": "Thailand",
    "ca-central-1": "Canada",
    "ca-west-1": "Calgary",
    "eu-central-1": "Frankfurt",
    "eu-central-2": "Zurich",
    "eu-north-1": "Stockholm",
    "eu-south-1": "Milan",
    "eu-south-2": "Spain",
    "eu-west-1": "Ireland",
    "eu-west-2": "London",
    "eu-west-3": "Paris",
    "il-central-1": "Tel Aviv",
    "me-central-1": "UAE",
    "me-south-1": "Bahrain",
    "mx-central-1": "Mexico",
    "sa-east-1": "Sao Paulo",
}
"""The regions of the public partition, by the city or country that AWS names.

Opt-in regions too.
"""
_OTHER_NAMES = {
    "us": "us-east-1",
    "usa": "us-east-1",
    "virginia": "us-east-1",
    "northvirginia": "us-east-1",
    "iad": "us-east-1",
    "eastus": "us-east-1",
    "eastus2": "us-east-2",
    "california": "us-west-1",
    "uswest": "us-west-2",
    "westus2": "us-west-2",
    "pdx": "us-west-2",
    "eu": "eu-west-1",
    "europe": "eu-west-1",
    "dublin": "eu-west-1",
    "westeurope": "eu-west-1",
    "northeurope": "eu-west-1",
    "germany": "eu-central-1",
    "switzerland": "eu-central-2",
    "sweden": "eu-north-1",
    "uk": "eu-west-2",
    "france": "eu-west-3",
    "italy": "eu-south-1",
    "japan": "ap-northeast-1",
    "korea": "ap-northeast-2",
    "india": "ap-south-1",
    "australia": "ap-southeast-2",
    "brazil": "sa-east-1",
    "israel": "il-central-1",
}
"""Countries, continents, airports and other clouds' regions, without punctuation."""


def region_at(name: str) -> str:
    """The region at a place, or what another cloud's name means; empty if unknown."""
    wanted = _bare(name)
    at = {_bare(place): region for region, place in PLACES.items()}
    return at.get(wanted) or _OTHER_NAMES.get(wanted, "")


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


_IN_SHORT = re.compile("north|south|east|west|central|gov")


def is_zone_of(zone: str, region: str) -> bool:
    """Whether a zone has the form of a region's names (``us-east-1a``) or ids (``use1-az4``)."""
    short = _IN_SHORT.sub(lambda word: word[0][0], region).replace("-", "")
    return any(re.fullmatch(f"{re.escape(start)}-?[a-z].*", zone) for start in (region, short))
