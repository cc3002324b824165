"""Commands whose options can be set by files and the environment."""

from __future__ import annotations

import os
from typing import Any

from typer.core import TyperCommand

from deepvm.cli.option_dataclass import field_name
from deepvm.cli.output import note
from deepvm.cli.settings import Setting, Settings, key_of, names, read_settings, value_for
from deepvm.errors import DeepVMError, RequestError


class _Defaults(dict[str, Any]):
    """Settings as defaults of a command's options, read when the first option is missing on the command line."""

    def __init__(self, command: TyperCommand) -> None:
        super().__init__()
        self._several = {str(p.name): bool(getattr(p, "multiple", False)) for p in command.params if p.name in names()}
        self._settings: Settings | None = None
        self.used: dict[str, Setting] = {}

    def get(self, name: str, default: Any = None) -> Any:
        """The value that is set for an option."""
        if name not in self._several:
            return default
        if self._settings is None:
            self._settings = read_settings(os.environ)
            for variable, meant in self._settings.misspelt.items():
                note(f"the environment variable {variable} has no effect; did you mean {meant}?")
        setting = self._settings.by_name.get(name)
        if setting is None:
            return default
        value = value_for(setting, several=self._several[name])
        self.used[name] = setting
        return value


class ConfiguredCommand(TyperCommand):
    """A command that reads options missing on the command line from the environment and from files."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options; an error about a value names where it was set."""
        if not ctx.resilient_parsing:  # the shell asks for completions: a broken file must not disturb it
            ctx.default_map = _Defaults(self)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Usage errors of the option parser; its classes moved between releases of typer, their shape did not.
            setting = _used(ctx).get(str(getattr(getattr(error, "param", None), "name", "")))
            if setting is not None and hasattr(error, "message"):
                error.message = f"{error.message} {_source_note(setting)}"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error names the settings that were used."""
        try:
            return super().invoke(ctx)
        except DeepVMError as error:
            used = _used(ctx)
            name = field_name(error.option) if isinstance(error, RequestError) else ""
            if name in used:
                _add_note(error, _source_note(used[name]))
            elif used and not name:
                given = ", ".join(f"{key_of(s.name)} ({s.source})" for s in used.values())
                _add_note(error, f"Not from the command line: {given}; see 'deepvm config show'.")
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help with the built-in defaults: the same everywhere, even with a broken settings file."""
        ctx.default_map = None
        super().format_help(ctx, formatter)


def _used(ctx: Any) -> dict[str, Setting]:
    return ctx.default_map.used if isinstance(ctx.default_map, _Defaults) else {}


def _source_note(setting: Setting) -> str:
    return f"--{key_of(setting.name)} was set by {setting.source}."


def _add_note(error: DeepVMError, text: str) -> None:
    # What BaseException.add_note does, which Python 3.10 lacks.
    error.__notes__ = [*getattr(error, "__notes__", ()), text]
