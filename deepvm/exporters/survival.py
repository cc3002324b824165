"""Exports whose training survives: they install deepvm, and start memory nodes and the agent.

No secret is in any file: whoever starts the machines makes the token.
"""

from __future__ import annotations

from deepvm.core.cluster.plan import ANCHOR, MEMORY, PlannedGroup
from deepvm.errors import RequestError
from deepvm.exporters.base import Exporter, ExportFile

OPTIONS = frozenset({"job", "package", "persist"})
"""Options of every export that starts trainings."""
ROLES = (MEMORY, ANCHOR)
"""Of VMs that keep checkpoints in memory."""


class SurvivingExporter(Exporter):
    """``SENDS_FILES``: its files are copied to the VMs, and so may be the wheel of deepvm."""

    SENDS_FILES = False

    @property
    def keepers(self) -> PlannedGroup | None:
        """The group that keeps checkpoints in memory: the memory nodes, or else the anchors."""
        groups = {group.role: group for group in self.plan.groups}
        return next((groups[role] for role in ROLES if role in groups), None)

    @property
    def wheels(self) -> list[ExportFile]:
        """The wheel that VMs install if they can get the deepvm that exports in no other way."""
        own = self.options.own
        if not self.SENDS_FILES or not own.wheel or self.options.package:
            return []
        return [ExportFile(own.wheel_name, "", own.wheel)]

    @property
    def library(self) -> str:
        """The extra with the library of the bucket; empty for S3, which needs none."""
        scheme = self.options.persist.partition("://")[0]
        if scheme in ("gs", "az"):
            return scheme
        return ""

    def requirement(self, *, trains: bool = True, folder: str = "") -> str:
        """What pip installs, as bash's default of a variable.

        ``trains``: whether it is for trainers, not for a memory node. ``folder``: where VMs have
        the wheel, as bash reads it between double quotes.

        Raises:
            RequestError: a training is to start, and VMs can install nothing.
        """
        own = self.options.own
        extras = [self.library] if self.library else []
        if trains:
            extras.insert(0, "train")
        extra = f"[{','.join(extras)}]" if extras else ""
        source = self.options.package or own.requirement(extra)
        if not source and self.wheels:
            source = f"{folder}/{own.wheel_name}{extra}"
        if not source and self.options.command:
            allowed = (
                "with --command what pip installs on the VMs, which cannot have the deepvm that"
                f" runs here, of {own.place}: a release such as 'deepvm[train]==0.1.0', the URL of"
                " a wheel, or git+https://HOST/NAME.git@REF; or --to torchrun or skypilot, which"
                " send it"
            )
            raise RequestError("package", "", allowed)
        if source:
            return f"-{source}"
        return "?deepvm export --package says what to install, and DEEPVM_PACKAGE here"
