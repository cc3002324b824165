"""Changes the product in every process of a job that a test starts with this folder in
``PYTHONPATH``.

``JOBS_MUTATION`` names the change. The product knows nothing of it. ``JOBS_CLOCK`` names a file: by
how many seconds the clock on the wall of agents and trainers is wrong, or with
``JOBS_CLOCK_OF_ALL`` that of every process.
"""

import os
import sys

_NAME = os.environ.get("JOBS_MUTATION", "")


def _no_agreement(module):
    """Ranks other than the first save a step later than is agreed."""
    scheduled = module.Board.scheduled

    def later(self, step):
        return scheduled(self, step if os.environ.get("RANK", "0") == "0" else step - 1)

    module.Board.scheduled = later


def _no_intent(module):
    """Requests are written down only when the cloud has answered."""
    commit = module.History.commit

    def late(self, name, before, world, events):
        if not any(m.state.value == "intent" for m in world.machines.values()):
            commit(self, name, before, world, events)

    module.History.commit = late


def _no_fence(module):
    """What an older generation writes is visible."""
    module.EpochFile._check = lambda self, epoch: None


def _older_version(module):
    """Training goes on from the version before the newest."""
    candidates = module._candidates
    module._candidates = lambda tiers, job: candidates(tiers, job)[1:]


def _no_notice(module):
    """Agents hear no notices."""
    module.Ec2Notices.poll = lambda self: None


def _no_end(module):
    """Agents let the trainers of an older generation go on."""

    def kill(self):
        self.running = []

    module.Trainers.kill = kill


def _no_hold(module):
    """Trainers go on behind a version after which they should hold."""
    module.AgentLink.hold = lambda self, step, save: None


_MUTATIONS = {
    "no-fence": {"deepvm.checkpoint.files.version_dir": _no_fence},
    "no-agreement": {"deepvm.io.agent_board": _no_agreement},
    "no-intent": {"deepvm.jobs.history.history": _no_intent},
    "older-version": {"deepvm.checkpoint.restore": _older_version},
    "no-notice": {"deepvm.jobs.agent.notices": _no_notice},
    "two-generations": {"deepvm.jobs.agent.trainers": _no_end, "deepvm.io.agent_link": _no_hold},
}


class _Finder:
    """Changes a module when it has been imported, and imports nothing by itself."""

    def __init__(self, module, change):
        self._module, self._change = module, change

    def find_spec(self, name, path=None, target=None):
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec = find_spec(name)
        run = spec.loader.exec_module

        def changed(made):
            run(made)
            self._change(made)

        spec.loader.exec_module = changed
        return spec


def _set_clock(place):
    """Agents and trainers have a clock that can be set.

    The controller, the cloud and its metadata service may.
    """
    import time

    all_have = "JOBS_CLOCK_OF_ALL" in os.environ

    true_time, true_time_ns = time.time, time.time_ns

    def wrong():
        here = (
            all_have
            or "deepvm.jobs.agent" in " ".join(sys.orig_argv)
            or "DEEPVM_AGENT" in os.environ
        )
        try:
            with open(place) as file:
                return float(file.read()) if here else 0.0
        except (OSError, ValueError):
            return 0.0

    time.time = lambda: true_time() + wrong()
    time.time_ns = lambda: true_time_ns() + int(wrong() * 1e9)


if "JOBS_CLOCK" in os.environ:
    _set_clock(os.environ["JOBS_CLOCK"])
if _NAME:
    sys.meta_path[:0] = [_Finder(module, change) for module, change in _MUTATIONS[_NAME].items()]
