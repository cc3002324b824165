"""The parent of a local machine where ``unshare`` is refused: ends its processes with it."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial

from deepvm.io.processes import become_subreaper, end_descendants, follow_parent

KEPT = "kept"  # The last word of the command that a keeper starts


def main() -> None:
    """Keep one machine to its end."""
    become_subreaper()
    # The machine's lock is among the open files: it is free when both have ended.
    follow = partial(follow_parent, os.getpid(), signal.SIGTERM)
    process = subprocess.Popen([*sys.argv[1:], KEPT], close_fds=False, preexec_fn=follow)
    with suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, 0)[0] == process.pid:
                break
    os._exit(0 if end_descendants() else 1)


if __name__ == "__main__":
    main()
