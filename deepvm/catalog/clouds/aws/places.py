"""Where AWS's regions are."""

from __future__ import annotations

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
