"""Compiled text templates in the user's cache: to compile them takes as long as to plan."""

import os
from contextlib import suppress

import jinja2
from jinja2.bccache import Bucket, FileSystemBytecodeCache

from deepvm.io.user_dirs import user_folder


class TemplateCache(FileSystemBytecodeCache):
    """Python code of templates. Only for environments that compile a template alike."""

    def load_bytecode(self, bucket: Bucket) -> None:
        try:
            super().load_bytecode(bucket)
        except Exception:  # of pickle, marshal or the file system
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """A full disk costs time, not the report."""
        with suppress(OSError):
            super().dump_bytecode(bucket)


def compiled_templates(environment: str) -> TemplateCache | None:
    """The user's cache for environments of one kind; None where no folder can be made for it."""
    root = user_folder("cache", os.environ)
    if root is None:
        return None
    # Each version of jinja2 compiles templates in its own way
    folder = root / "compiled_templates" / f"jinja2-{jinja2.__version__}" / environment
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return TemplateCache(str(folder))
