"""Settings: options from the environment and from files."""

import difflib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from typer.core import TyperCommand

from deepvm.catalog.price_sources import ADDRESS_VARIABLES
from deepvm.cli.output import note
from deepvm.cli.parameters import long_name
from deepvm.core.options import GROUPS, Option, default_of, option_of
from deepvm.documents.tree import shown
from deepvm.errors import DataError, DeepVMError, RequestError
from deepvm.io.safe_read import read_text
from deepvm.io.user_dirs import is_missing, read_data, user_folder
from deepvm.services.plan_options import RankFlags

FOLDER_FILE = "deepvm.toml"
NO_FILE = "none"  # DEEPVM_CONFIG for no file of the user's own
# Variables that set no option
OTHER_VARIABLES = frozenset([*read_data("settings/other_variables.json"), *ADDRESS_VARIABLES])
_AMOUNT = re.compile(r"\$?\s*\.?[0-9].*")  # also with a unit, so that the error is about the unit
_SWITCH = {"true": True, "yes": True, "on": True, "1": True}
_SWITCH |= {"false": False, "no": False, "off": False, "0": False}
_FILES = ("catalog", "quota", "tables", "job_file")
_FORMS = {
    list: "text in quotes, or a list of texts",
    bool: "true or false",
    str: "text in quotes, or a number",
}

Value = str | bool | list[str]  # of a setting; numbers stay text, because the planner reads them


class SettableOption(NamedTuple):
    """An option that may be set, its name in files, the forms of its values, and its default."""

    about: Option
    key: str
    forms: set[type]
    default: Any


SETTABLE: dict[str, SettableOption] = {}
for _field in fields(RankFlags):
    if _about := option_of(_field):
        _default = default_of(_field)
        _form = list if isinstance(_default, list) else _about.kind
        _key = _about.key or long_name(_field.name, _about)
        SETTABLE[_field.name] = SettableOption(_about, _key, {_form}, _default)
SETTABLE["policy"].forms.add(list)  # sweep takes several
_BY_KEY = {each.key: name for name, each in SETTABLE.items()}


class Setting(NamedTuple):
    """A value from the environment or a file (``kind``); ``source`` is the variable or the path."""

    key: str
    value: Value | None
    kind: str
    source: str

    def value_for(self, *, several: bool) -> Value | None:
        if several and isinstance(self.value, str):
            return [self.value]
        if several or not isinstance(self.value, list):
            return self.value
        if len(self.value) == 1:
            return self.value[0]
        raise self.refused(", ".join(self.value), "a single value; only 'sweep' takes several")

    def refused(self, value: Any, allowed: str) -> DeepVMError:
        if self.kind == "environment":
            return RequestError(self.source, value, allowed)
        message = f"invalid value for {self.key}: {shown(value)} (expected {allowed})"
        return DataError(f"{self.source}: {message}")

    def converted(self, name: str) -> "Setting":
        forms = SETTABLE[name].forms
        if bool in forms and isinstance(self.value, bool):
            return self
        words: list[Any] = [self.value]
        if isinstance(self.value, list) and list in forms:
            words = self.value
        if bool in forms or any(type(word) not in (str, int, float) for word in words):
            allowed = next(text for form, text in _FORMS.items() if form in forms)
            raise self.refused(self.value, allowed)
        texts = list(map(str, words))
        # A single word is a list of one, unless the option also takes single words.
        if str in forms and not isinstance(self.value, list):
            return self._replace(value=texts[0])
        return self._replace(value=texts)


class Settings(NamedTuple):
    """Each option's setting by precedence, and whether each file that may hold some exists."""

    by_name: Mapping[str, Setting]
    files: Mapping[str, bool]


_META = "deepvm.settings"  # of a context, by name
BARE_BUDGET = "deepvm.budget"  # of a context: an amount that stands without --pw
# Settings of the running command, for :func:`set_by`; a process runs one command at a time
_used: dict[str, Setting] = {}


class ConfiguredCommand(TyperCommand):
    """A command that reads options missing on the command line from the environment and files."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Usage errors of the option parser; its classes moved between releases of typer, their
            # shape did not.
            if hasattr(error, "message"):
                error.message = f"{error.message} {_used_text(ctx)}".rstrip()
            raise

    def make_parser(self, ctx: Any) -> Any:
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            given, words, order = parse(args=args)
            # For completions and for help, which a broken file must not disturb, nothing is read
            if not ctx.resilient_parsing and "help" not in given:
                self._take_budget(ctx, given, words)
                ctx.default_map = self._defaults(ctx, given)
            return given, words, order

        parser.parse_args = parse_args
        return parser

    def _defaults(self, ctx: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        settings = ctx.meta[_META] = read_settings(os.environ).by_name
        defaults = {}
        for parameter in self.params:
            name = str(parameter.name)
            values = given.get(name)
            if not isinstance(values, list):
                values = [values]
            if "" in values and not parameter.required:
                allowed = f"{parameter.metavar or 'a value'}; leave the option out for its default"
                raise RequestError(name, "", allowed)
            if name in settings and name not in given:
                several = bool(getattr(parameter, "multiple", False))
                defaults[name] = settings[name].value_for(several=several)
        return defaults

    def _take_budget(self, ctx: Any, given: dict[str, Any], words: list[str]) -> None:
        kinds = {p.param_type_name: str(p.name) for p in self.params}
        if not words or "pw" not in [p.name for p in self.params]:
            return
        argument = kinds.get("argument", "")
        if argument and _AMOUNT.fullmatch(str(given[argument])) and not _AMOUNT.fullmatch(words[0]):
            given[argument], words[0] = words[0], given[argument]  # deepvm explain 3 g5.xlarge
        amounts = [w for w in words if _AMOUNT.fullmatch(w)]
        if len(amounts) + ("pw" in given) > 1:
            ctx.fail(f"budget given twice: {' and '.join([*amounts, '--pw'][:2])}")
        # What is not a number is refused as one
        if not amounts and not argument and "pw" not in given:
            amounts = words[:1]
        if amounts:
            given["pw"] = amounts[0]
            ctx.meta[BARE_BUDGET] = amounts[0]
            words.remove(amounts[0])

    def invoke(self, ctx: Any) -> Any:
        _used.clear()
        _used.update(_used_settings(ctx))
        try:
            return super().invoke(ctx)
        except DeepVMError as error:
            # What BaseException.add_note does, which Python 3.10 lacks.
            error.__notes__ = [*getattr(error, "__notes__", ()), *filter(None, [_used_text(ctx)])]
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the options in groups; the rare ones only for ``deepvm help COMMAND --all``."""
        groups: dict[str, list[Any]] = {title: [] for title in (*GROUPS, "")}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                groups[getattr(parameter, "rich_help_panel", None) or ""].append(record)
        if (ctx.obj or {}).get("all"):  # as help_command sets it
            groups["More"] = groups.pop("")
        rare = groups.pop("", [])
        for title, rows in groups.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if rare:
            formatter.write_paragraph()
            command = ctx.command_path.partition(" ")[2]
            formatter.write_text(f"{len(rare)} more options: deepvm help {command} --all")

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help with the built-in defaults."""
        ctx.default_map = None
        super().format_help(ctx, formatter)


def _used_settings(ctx: Any) -> dict[str, Setting]:
    used: dict[str, Setting] = {}
    for name, setting in ctx.meta.get(_META, {}).items():
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "DEFAULT_MAP":
            used[name] = setting
    return used


def _used_text(ctx: Any) -> str:
    given = ", ".join(f"{s.key} ({s.source})" for s in _used_settings(ctx).values())
    return given and f"Not from the command line: {given}; see 'deepvm config show'."


def set_by(name: str) -> str:
    """Which file or variable set an option of the running command."""
    if name in _used:
        return _used[name].source
    return ""


def variable_of(key: str) -> str:
    """An option's variable in the environment: ``DEEPVM_CHECKPOINT_SIZE``."""
    return f"DEEPVM_{key.upper().replace('-', '_')}"


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the environment, ``deepvm.toml`` in the current folder, and the user's own file."""
    settings = _of_environment(environ)
    files = {}
    for path in filter(None, (Path(FOLDER_FILE), _user_file(environ))):
        values = _read(path)
        files[str(path)] = values is not None
        settings = _of_file(path, values or {}) | settings
    known = {*map(variable_of, _BY_KEY), *OTHER_VARIABLES}
    for variable in sorted(v for v in environ if v.startswith("DEEPVM_") and v not in known):
        # Other programs may use this prefix: only near misses are reported.
        for meant in difflib.get_close_matches(variable, known, 1, 0.92):
            note(f"the environment variable {variable} has no effect; did you mean {meant}?")
    return Settings(settings, files)


def _of_environment(environ: Mapping[str, str]) -> dict[str, Setting]:
    settings = {}
    for name, (_, key, forms, _) in SETTABLE.items():
        variable = variable_of(key)
        text = environ.get(variable, "").strip()
        value: Value = text
        if bool in forms:
            value = _SWITCH.get(text.lower(), text)
        elif list in forms:
            value = [word.strip() for word in text.split(",") if word.strip()]
        if text:  # set to nothing, as `DEEPVM_REGION= deepvm ...` does, is not set
            settings[name] = Setting(key, value, "environment", variable).converted(name)
    return settings


def _user_file(environ: Mapping[str, str]) -> Path | None:
    named = environ.get("DEEPVM_CONFIG", "")
    if not named:
        folder = user_folder("config", environ)
        return folder and folder / "config.toml"
    if named == NO_FILE:
        return None
    path = Path(os.path.expanduser(named))
    if not path.exists():
        allowed = f"a TOML file that exists, or {NO_FILE} for none"
        raise RequestError("DEEPVM_CONFIG", named, allowed)
    return path


def _read(path: Path) -> dict[str, Any] | None:
    """The contents of a file; None when there is no such file. Raises DataError."""
    if is_missing(path):
        return None
    try:
        text = read_text(path, "settings in TOML", 2**20, may_be_empty=True)
    except FileNotFoundError:
        raise DataError(f"{path}: is a link to a file that does not exist") from None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not TOML: {error}") from None


def _of_file(path: Path, values: Mapping[str, Any]) -> dict[str, Setting]:
    settings = {}
    for written, value in values.items():
        key = written.replace("_", "-")
        if key != written and key in values:
            raise DataError(f"{path}: repeated key {written}")
        name = _BY_KEY.get(key)
        if name is None:
            hint = "see 'deepvm config show'"
            for near in difflib.get_close_matches(key, _BY_KEY, 1):
                hint = f"did you mean {near}?"
            raise DataError(f"{path}: unknown key {shown(written)} ({hint})")
        setting = Setting(key, value, "file", str(path)).converted(name)
        text = setting.value
        if isinstance(text, str) and text:
            is_file = text.lower().endswith((".json", ".csv", ".yaml", ".yml"))
            # Relative to the settings file that names it, not to the working folder
            if name == "price_history" or (name in _FILES and is_file):
                setting = setting._replace(value=str(path.parent / os.path.expanduser(text)))
        settings[name] = setting
    return settings
