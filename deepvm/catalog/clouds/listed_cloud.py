"""A cloud of which deepvm knows what public catalogs list: it asks the cloud itself nothing, and needs no account."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NoReturn

from deepvm.catalog.signals.cloud import Cloud, Region
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, SPECS, SPOT, Provider
from deepvm.core.spelling import did_you_mean
from deepvm.errors import CloudError, RequestError
from deepvm.io.user_dirs import data_folder

WITH_ZONES = (SPECS, OFFERINGS, ON_DEMAND, SPOT)
WITHOUT_ZONES = (SPECS, ON_DEMAND, SPOT)
WITHOUT_SPOT = (SPECS, ON_DEMAND)
"""The signals of a catalog by what the cloud's public catalogs tell apart."""


class ListedCloud(Cloud):
    """See :class:`Cloud`. What differs between such clouds is their attributes.

    Attributes:
        region_form: of a region's name.
        default_region: where most types are offered.
        region_variables: of the environment; the first that is set names the user's own region.
        burstable: types that run at full speed only for a while, by name.
    """

    has_api = False
    region_form: ClassVar[str]
    default_region: ClassVar[str]
    region_variables: ClassVar[tuple[str, ...]] = ()
    burstable: ClassVar[str] = "(?!)"  # none

    def quota_family(self, type_name: str) -> str:
        """See :meth:`Cloud.quota_family`: the family of types, though no limit of theirs is known."""
        cut = max(type_name.rfind(mark) for mark in "-_")
        return type_name[:cut] if cut > 0 else type_name

    def facts_of(self, type_name: str) -> Mapping[str, Any]:
        return {"burstable": True} if re.fullmatch(self.burstable, type_name) else {}

    def check_region(self, name: str, option: str = "region") -> str:
        """See :meth:`Cloud.check_region`.

        Whether there is such a region only a catalog can tell.
        """
        if re.fullmatch(self.region_form, name):
            return name
        allowed = f"a region of {self.title} in small letters, such as {self.default_region}"
        meant = did_you_mean(name.lower().replace("_", "-"), sorted(self.known_regions()))
        raise RequestError(option, name, f"{allowed}; {meant}" if meant else allowed)

    def own_region(self, profile: str, environ: Mapping[str, str]) -> Region:
        for variable in self.region_variables:
            if environ.get(variable):
                return Region(
                    self.check_region(environ[variable], variable),
                    f"environment variable {variable}",
                )
        named = " and no ".join(("--region", *self.region_variables))
        return Region(self.default_region, f"the default: no {named}")

    def known_regions(self) -> Collection[str]:
        """See :meth:`Cloud.known_regions`; there may be more."""
        return _regions()[self.name]

    def account_regions(self, profile: str) -> tuple[str, ...]:
        """See :meth:`Cloud.account_regions`: nobody can be asked."""
        self._refuse("the regions of an account")

    def credentials_may_exist(self, profile: str, environ: Mapping[str, str]) -> bool:
        """See :meth:`Cloud.credentials_may_exist`: none are looked for."""
        return False

    def account_tag(self, profile: str, environ: Mapping[str, str]) -> str:
        return "nobody"

    def providers(self, kinds: Sequence[str], profile: str) -> Mapping[str, Provider]:
        """See :meth:`Cloud.providers`: there are none."""
        return {}

    def placement_provider(self, profile: str, types: Sequence[str], count: int) -> Provider:
        """See :meth:`Cloud.placement_provider`: nobody can be asked."""
        self._refuse("spot placement scores")

    def _refuse(self, what: str) -> NoReturn:
        detail = f"deepvm asks {self.title} nothing, it only reads public catalogs of its prices"
        raise CloudError(what, "reply", detail, "leave the option out")


@lru_cache(maxsize=1)
def _regions() -> dict[str, list[str]]:
    text = (data_folder() / "clouds" / "regions.json").read_text(encoding="utf-8")
    regions: dict[str, list[str]] = json.loads(text)
    return regions
