"""Settings that all tests share."""

from __future__ import annotations

import gc
import os

# Before numpy and torch are imported. The workers have all cores already: threads of a sum would
# only wait for one another, and its last digit depends on how many there are.
os.environ["OMP_NUM_THREADS"] = "1"

import signal
import tempfile
from collections.abc import Iterator
from multiprocessing import resource_tracker

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from support import rings
from support.effort import THOROUGH, examples
from support.places import TESTS
from support.reaper import watch_this_process

# Nothing of the machine's own reaches a test: no credentials, no settings, no cache; processes that
# tests start inherit this. The folder is empty and goes with the process.
for _name in [n for n in os.environ if n.startswith(("AWS_", "DEEPVM_"))]:
    del os.environ[_name]
_nowhere = tempfile.TemporaryDirectory(prefix="deepvm-tests-")
os.environ |= {
    "AWS_CONFIG_FILE": f"{_nowhere.name}/aws-config",
    "AWS_SHARED_CREDENTIALS_FILE": f"{_nowhere.name}/aws-credentials",
    "AWS_EC2_METADATA_DISABLED": "true",
    # No test asks the web; those of public catalogs ask a server of their own.
    "DEEPVM_SKYPILOT_URL": "none",
    "DEEPVM_GPUHUNT_URL": "none",
    "DEEPVM_CACHE_DIR": f"{_nowhere.name}/cache",
    "DEEPVM_DATA_DIR": f"{_nowhere.name}/data",
    "XDG_DATA_HOME": f"{_nowhere.name}/own",
    "XDG_CONFIG_HOME": f"{_nowhere.name}/config",
    # Programs in tests/support/ find one another as the tests do.
    "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
}

# Nothing that tests start outlives an interrupted run.
_reaper = watch_this_process()

# Begun inside a test, this process would be taken for one that the test has left, and be ended; the
# next process that is started would warn of it.
resource_tracker.ensure_running()

# Times differ between machines, so no deadline; in CI the examples are the same in every run, so
# that a red build means a change in the code. `print_blob` shows how to repeat a failing example
# elsewhere.
_profile = "thorough" if THOROUGH else "quick"
settings.register_profile(
    _profile,
    deadline=None,
    print_blob=True,
    max_examples=examples(100),
    derandomize=os.environ.get("CI") == "true",
)
settings.load_profile(_profile)
# Hypothesis also draws constants of all modules that are loaded: examples would differ between
# workers, and with every change, also where they are derandomized. The thorough suite draws them.
if not THOROUGH and hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage: of the thousands of modules and tests made here, none goes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # What tests leave is small next to the modules that they load
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rings.mark_rings(items)
    rings.keep_modules_together(items)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes may hold the time of day (zip files, commit records), and all workers must collect the
    same names.
    """
    return "bytes" if isinstance(val, bytes) else None


@pytest.fixture(autouse=True, scope="module")
def nothing_left_in_the_environment() -> Iterator[None]:
    """What a test sets there would reach the processes that all later tests start."""

    def ours() -> dict[str, str]:
        return {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("AWS_", "DEEPVM_"))
        }

    before = ours()
    yield
    assert ours() == before


@pytest.fixture
def one_core() -> Iterator[None]:
    """Threads that wait for each other on a machine with other work to do make steps many times as
    long.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C and SIGHUP reach what the tests start.

    What a shell runs with ``&`` ignores the first, what ``nohup`` runs ignores the second.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    rings.register(config)
