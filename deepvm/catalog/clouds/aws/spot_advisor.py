"""AWS's public Spot Advisor file: how often VMs of a type are interrupted. Needs no account.

Its savings are not read: prices derived from them are off by 15 % in the median and by a factor of
two in one of ten.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from deepvm.catalog.public.download import PublicFile, download, shown
from deepvm.catalog.signals.signal import ADVISOR, FetchResult, Provider
from deepvm.core.cluster.instances import INTERRUPTION_BANDS
from deepvm.errors import CloudError

ADVISOR_URL = "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json"
URL_VARIABLE = "DEEPVM_ADVISOR_URL"

_ADVICE = "try again later; without it, types are not marked by how often they are interrupted"


class AdvisorProvider(Provider):
    """How often spot VMs of each type are interrupted, in AWS's five bands.

    The file holds all regions: it is downloaded, or fails, once for each time ``now``.
    """

    def __init__(self) -> None:
        """Take the file from ``DEEPVM_ADVISOR_URL``, else from AWS.

        Raises RequestError: that is no web address.
        """
        super().__init__(ADVISOR, "AWS Spot Advisor", self._read_bands)
        url = os.environ.get(URL_VARIABLE) or ADVISOR_URL
        # The real file has about 10 MiB.
        self.file = PublicFile(url, f"Spot Advisor at {shown(url)}", URL_VARIABLE, _ADVICE)
        self._lock = threading.Lock()
        self._regions = lru_cache(maxsize=1)(self._download)

    def _read_bands(self, region: str, now: datetime) -> FetchResult:
        with self._lock:
            regions = self._regions(now)
        if isinstance(regions, CloudError):
            raise regions
        tables = regions.get(region)
        types = tables.get("Linux") if isinstance(tables, dict) else None
        if not isinstance(types, dict):
            raise self.file.unreadable(f"the file has no table for Linux in {region}")
        # type() and not isinstance(), which would accept True as band 1.
        bands = {
            name: row["r"]
            for name, row in sorted(types.items())
            if isinstance(row, dict)
            and type(row.get("r")) is int
            and 0 <= row["r"] < len(INTERRUPTION_BANDS)
        }
        if not bands:
            raise self.file.unreadable(f"none of {len(types)} types in {region} has a band")
        lost = len(types) - len(bands)
        return FetchResult(bands, {"unknown band": lost} if lost else {})

    def _download(self, _: datetime) -> Mapping[str, Any] | CloudError:
        """The tables of all regions, by name, or why there are none."""
        try:
            regions = json.loads(download(self.file).body)["spot_advisor"]
        except CloudError as error:
            return error
        except (ValueError, RecursionError, LookupError, TypeError):
            regions = None
        if not isinstance(regions, dict) or not regions:
            return self.file.unreadable("the file has no table spot_advisor")
        return regions
