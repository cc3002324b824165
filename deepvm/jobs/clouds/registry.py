"""Where the machines of jobs come from: a cloud is one module, or one folder, and one line here."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import cast

from deepvm.core.spelling import refuse_unknown
from deepvm.jobs.cloud import Cloud, NetworkFaults, OwnedHosts

CLOUDS = {
    "local": "deepvm.jobs.clouds.local:LocalCloud",
    "netns": "deepvm.jobs.clouds.netns:NetnsCloud",
    "ssh": "deepvm.jobs.clouds.ssh:SshCloud",
    "aws": "deepvm.jobs.clouds.aws.ec2_cloud:Ec2Cloud",
}
"""Name -> ``module:class``, imported when first used."""


def find_cloud(name: str) -> type[Cloud]:
    """The class of a cloud. Raises RequestError."""
    refuse_unknown("cloud", name, CLOUDS)
    return cast("type[Cloud]", pkgutil.resolve_name(CLOUDS[name]))


def clouds_that_preempt() -> tuple[str, ...]:
    """The names of those whose machines can be preempted on purpose."""
    return tuple(name for name in CLOUDS if find_cloud(name).can_preempt)


def clouds_that_cut() -> tuple[str, ...]:
    """The names of those whose machines can lose their links."""
    return tuple(name for name in CLOUDS if issubclass(find_cloud(name), NetworkFaults))


def clouds_of_owner(folder: Path) -> tuple[str, ...]:
    """The names of those that know whose machines are, and had some for the jobs of ``folder``."""
    found = [(name, find_cloud(name)) for name in CLOUDS]
    return tuple(
        name for name, cloud in found if issubclass(cloud, OwnedHosts) and cloud.used(folder)
    )


def open_cloud(name: str, folder: Path) -> Cloud:
    """The cloud of a name; ``folder``: where the jobs of this user are.

    Raises RequestError, RefusedError.
    """
    return find_cloud(name).open(folder)
