"""The default name of a training job, derived from its script's path: the same after a restart."""

from __future__ import annotations

import hashlib
import os
import re
import sys

_STEM_LENGTH = 40
"""Characters of the script's name; memory nodes add up to 18 to the job's, and 64 is the limit."""


def derived_name() -> str:
    """The script's name and a digest of its path; arguments do not count."""
    main = sys.modules.get("__main__")
    notebook = getattr(main, "__vsc_ipynb_file__", None) or os.environ.get("JPY_SESSION_NAME")
    # Python makes __file__ absolute, so that it does not depend on the working directory.
    path = os.path.abspath(getattr(main, "__file__", None) or notebook or os.getcwd())
    stem = re.sub(r"[^A-Za-z0-9]+", "-", os.path.splitext(os.path.basename(path))[0])[
        :_STEM_LENGTH
    ].strip("-")
    return f"{stem or 'training'}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
