"""Names of AWS regions: their form, the user's own, and those that boto3 knows.

Only :func:`known_regions` loads botocore.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from deepvm.catalog.clouds.aws.credentials import profile_name, profile_parts
from deepvm.catalog.signals.cloud import Region
from deepvm.core.spelling import did_you_mean
from deepvm.errors import RequestError

DEFAULT_REGION = "us-east-1"

# Newer partitions have longer first words (eusc-de-east-1) or two in the middle (us-gov-west-1).
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]{2,9}){1,2}-[1-9][0-9]?")


def check_region(name: str, option: str = "region") -> str:
    """Return the name if it has the form of a region's name; whether AWS has such a region only AWS can tell.

    Args:
        name: what the user wrote.
        option: where it was written, for the error.

    Raises:
        RequestError: it cannot be the name of a region.
    """
    if not _REGION.fullmatch(name):
        allowed = "an AWS region in small letters, such as us-east-1 or ap-northeast-2"
        if _REGION.fullmatch(name[:-1]) and name[-1:].isalpha():
            allowed += f"; {name} is a zone, its region is {name[:-1]}"
        else:
            meant = did_you_mean(name.replace("_", "-"), sorted(known_regions()))
            allowed += f"; {meant}" if meant else ""
        raise RequestError(option, name, allowed)
    return name


def region_of(flag: str, profile: str, environ: Mapping[str, str]) -> Region:
    """The region to ask about: flag, ``AWS_REGION``, ``AWS_DEFAULT_REGION``, the profile's, us-east-1.

    boto3 ignores ``AWS_REGION``, which every other tool of AWS reads; therefore the order is decided here.

    Args:
        flag: ``--region``, empty when absent.
        profile: ``--profile``, empty when absent.
        environ: the environment.

    Raises:
        RequestError: what was found cannot be the name of a region.
    """
    if flag:
        return Region(check_region(flag), "--region")
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if environ.get(variable):
            return Region(check_region(environ[variable], variable), f"environment variable {variable}")
    name = profile_name(profile, environ)
    for part in profile_parts(name, environ):
        found = part.keys.get("region", "").strip()
        if found:
            where = f"profile {name} in {part.file}"
            return Region(check_region(found, f"region of {where}"), where)
    return Region(DEFAULT_REGION, "the default: no --region, no AWS_REGION and no region in the AWS profile")


@lru_cache
def known_regions(service: str = "ec2") -> frozenset[str]:
    """The regions of a service in botocore's own tables; reads no settings and asks nobody."""
    from botocore.loaders import create_loader
    from botocore.regions import EndpointResolver

    resolver = EndpointResolver(create_loader().load_data("endpoints"))
    partitions = resolver.get_available_partitions()
    return frozenset(r for p in partitions for r in resolver.get_available_endpoints(service, p))
