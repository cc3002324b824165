"""Where the machines of jobs come from: a cloud is one module, or one folder, and one line here.

A folder has ``X_cloud`` (what controllers call) and, as needed, ``X_requests`` (what is sent, and
what answers mean), ``X_account`` (what is looked up once) and ``X_settings`` (of the environment,
with what new machines run first).
"""

import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

from deepvm.core.spelling import refuse_unknown
from deepvm.jobs.cloud import Cloud, NetworkFaults, OwnedHosts

# Name -> ``module:class``, imported when first used
CLOUDS = {
    "local": "deepvm.jobs.clouds.local:LocalCloud",
    "netns": "deepvm.jobs.clouds.netns:NetnsCloud",
    "ssh": "deepvm.jobs.clouds.ssh:SshCloud",
    "aws": "deepvm.jobs.clouds.aws.ec2_cloud:Ec2Cloud",
}


def find_cloud(name: str) -> type[Cloud]:
    """The class of a cloud. Raises RequestError."""
    refuse_unknown("cloud", name, CLOUDS)
    return cast("type[Cloud]", pkgutil.resolve_name(CLOUDS[name]))


def clouds_that_preempt() -> tuple[str, ...]:
    """Those whose machines can be preempted on purpose."""
    return tuple(name for name in CLOUDS if find_cloud(name).can_preempt)


def clouds_that_cut() -> tuple[str, ...]:
    """Those whose machines can lose their links."""
    return tuple(name for name in CLOUDS if issubclass(find_cloud(name), NetworkFaults))


def clouds_of_owner(folder: Path) -> tuple[str, ...]:
    """Those that know whose machines are, and had some for the jobs of ``folder``."""
    found = [(name, find_cloud(name)) for name in CLOUDS]
    return tuple(
        name for name, cloud in found if issubclass(cloud, OwnedHosts) and cloud.used(folder)
    )


def open_cloud(name: str, folder: Path) -> Cloud:
    """The cloud of a name, for the jobs in ``folder``. Raises RequestError, RefusedError."""
    return cast("Callable[[Path], Cloud]", find_cloud(name))(folder)
