"""Settings: options from the environment and from files.

In order of precedence: the command line, ``DEEPVM_*`` variables, ``deepvm.toml`` in the current
folder, the user's own file, the default. A :class:`ConfiguredCommand` has them as its defaults.
"""

from __future__ import annotations

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
from deepvm.cli.parameters import key_of
from deepvm.core.options import GROUPS, Option, default_of, option_of
from deepvm.documents.tree import shown
from deepvm.errors import DataError, DeepVMError, RequestError
from deepvm.io.safe_read import read_text
from deepvm.io.user_dirs import is_missing, user_folder
from deepvm.services.plan_options import RankFlags

FOLDER_FILE = "deepvm.toml"
CONFIG_VARIABLE = "DEEPVM_CONFIG"
NO_FILE = "none"  # DEEPVM_CONFIG for no file of the user's own
OTHER_VARIABLES = frozenset(
    """
    DEEPVM_ADVISOR_URL DEEPVM_AGENT DEEPVM_ALLOW_WEAK_TOKEN DEEPVM_AUDIT_DIR DEEPVM_AUDIT_KILL
    DEEPVM_AUDIT_LOG DEEPVM_AWS_AMI DEEPVM_AWS_ANCHOR_AMI DEEPVM_AWS_BUCKET DEEPVM_AWS_HEAD_PROFILE
    DEEPVM_AWS_HEAD_TYPE DEEPVM_AWS_INSTALL DEEPVM_AWS_INSTANCE_PROFILE DEEPVM_AWS_PYTHON
    DEEPVM_AWS_SECURITY_GROUP DEEPVM_AWS_SUBNETS DEEPVM_CACHE_DIR DEEPVM_CHECKPOINT_KILL_AT
    DEEPVM_CONFIG DEEPVM_CONTROLLER_HOST DEEPVM_CONTROLLER_PORT DEEPVM_DATA DEEPVM_DATA_DIR
    DEEPVM_EPOCH DEEPVM_HISTORY DEEPVM_INDEPENDENT DEEPVM_JOB DEEPVM_KEEP DEEPVM_KILL_POINTS
    DEEPVM_MTBF DEEPVM_SAVE_EVERY DEEPVM_TIERS DEEPVM_TLS_CA DEEPVM_TOKEN DEEPVM_TOKEN_FILE
    """.split()  # noqa: SIM905  thirty-five lines otherwise
) | frozenset(ADDRESS_VARIABLES)
"""Variables that set no option."""

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


def _settable() -> dict[str, SettableOption]:
    """The options that may be set, as fields of RankFlags, which has all of them."""
    options: dict[str, SettableOption] = {}
    for field in fields(RankFlags):
        about = option_of(field)
        if about is not None:
            default = default_of(field)
            form = list if isinstance(default, list) else about.kind
            key = key_of(field.name, about)
            options[field.name] = SettableOption(about, key, {form}, default)
    options["policy"].forms.add(list)  # sweep takes several
    return options


SETTABLE = _settable()
_BY_KEY = {each.key: name for name, each in SETTABLE.items()}


class Setting(NamedTuple):
    """A value from the environment or a file (``kind``); ``source`` is the variable or the path.

    ``key``: the option's name in files, such as ``checkpoint-size``.
    """

    key: str
    value: Value | None
    kind: str
    source: str

    def value_for(self, *, several: bool) -> Value | None:
        """The value for a command.

        DataError or RequestError for a list where the option is not repeatable.
        """
        if several and isinstance(self.value, str):
            return [self.value]
        if several or not isinstance(self.value, list):
            return self.value
        if len(self.value) == 1:
            return self.value[0]
        raise self.refused(", ".join(self.value), "a single value; only 'sweep' takes several")

    def refused(self, value: Any, allowed: str) -> DeepVMError:
        """The error about a value that is not allowed."""
        if self.kind == "environment":
            return RequestError(self.source, value, allowed)
        message = f"invalid value for {self.key}: {shown(value)} (expected {allowed})"
        return DataError(f"{self.source}: {message}")

    def converted(self, name: str) -> Setting:
        """A copy with the value in the form that the option takes.

        DataError or RequestError for another form.
        """
        forms = SETTABLE[name].forms
        value: Any = self.value
        several = isinstance(value, list) and list in forms
        words = value if several else [value]
        if bool in forms:
            fits = isinstance(value, bool)
        else:
            fits = all(isinstance(w, str | int | float) and not isinstance(w, bool) for w in words)
        if not fits:
            allowed = next(text for form, text in _FORMS.items() if form in forms)
            raise self.refused(value, allowed)
        if bool not in forms:
            # A single word is a list of one, unless the option also takes single words.
            value = list(map(str, words))
            if not several and str in forms:
                value = value[0]
        return self._replace(value=value)


class Settings(NamedTuple):
    """Each option's setting by precedence, and whether each file that may hold some exists."""

    by_name: Mapping[str, Setting]
    files: Mapping[str, bool]


NOTHING_SET = Settings({}, {})
_KEY = "deepvm.settings"  # of a context's ``meta``
_used: dict[str, Setting] = {}
"""Settings of the running command, for :func:`set_by`; a process runs one command at a time."""


class ConfiguredCommand(TyperCommand):
    """A command that reads options missing on the command line from the environment and files."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options; an error about a value names where it was set."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Usage errors of the option parser; its classes moved between releases of typer, their
            # shape did not.
            if hasattr(error, "message"):
                error.message = f"{error.message} {_used_text(ctx)}".rstrip()
            raise

    def make_parser(self, ctx: Any) -> Any:
        """The option parser; settings are added after it has split the words, before conversion."""
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
        """The settings of what is not on the command line.

        Raises RequestError for an empty value there, which would count as not given.
        """
        settings = ctx.meta[_KEY] = read_settings(os.environ)
        defaults = {}
        for parameter in self.params:
            name = str(parameter.name)
            values = given.get(name)
            if not isinstance(values, list):
                values = [values]
            if "" in values and not parameter.required:
                allowed = f"{parameter.metavar or 'a value'}; leave the option out for its default"
                raise RequestError(name, "", allowed)
            if name in settings.by_name and name not in given:
                several = bool(getattr(parameter, "multiple", False))
                defaults[name] = settings.by_name[name].value_for(several=several)
        return defaults

    def _take_budget(self, ctx: Any, given: dict[str, Any], words: list[str]) -> None:
        """Take a budget without its option: ``deepvm recommend --model vit-b 3``.

        Other words stay errors.
        """
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
            words.remove(amounts[0])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error names the settings that were used."""
        _used.clear()
        _used.update(used_settings(ctx))
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
        """Show the help with the built-in defaults.

        It is the same everywhere, even with a broken settings file.
        """
        ctx.default_map = None
        super().format_help(ctx, formatter)


def used_settings(ctx: Any) -> dict[str, Setting]:
    """The settings of which a command line takes the values."""
    used: dict[str, Setting] = {}
    for name, setting in ctx.meta.get(_KEY, NOTHING_SET).by_name.items():
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "DEFAULT_MAP":
            used[name] = setting
    return used


def _used_text(ctx: Any) -> str:
    """A sentence for errors that lists the settings that were used; empty without any."""
    given = ", ".join(f"{s.key} ({s.source})" for s in used_settings(ctx).values())
    return given and f"Not from the command line: {given}; see 'deepvm config show'."


def set_by(name: str) -> str:
    """Which file or variable set an option of the running command.

    Empty for the command line and for defaults.
    """
    if name in _used:
        return _used[name].source
    return ""


def variable_of(key: str) -> str:
    """An option's variable in the environment: ``DEEPVM_CHECKPOINT_SIZE``."""
    return f"DEEPVM_{key.upper().replace('-', '_')}"


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the environment, ``deepvm.toml`` in the current folder, and the user's own file.

    Note misspelled variables. Raises DataError about a file, RequestError about a variable.
    """
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
    named = environ.get(CONFIG_VARIABLE, "")
    if not named:
        folder = user_folder("config", environ)
        return folder and folder / "config.toml"
    if named == NO_FILE:
        return None
    path = Path(os.path.expanduser(named))
    if not path.exists():
        allowed = f"a TOML file that exists, or {NO_FILE} for none"
        raise RequestError(CONFIG_VARIABLE, named, allowed)
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
        settings[name] = setting._replace(value=_relative_to(name, setting.value, path))
    return settings


def _relative_to(name: str, value: Value | None, file: Path) -> Value | None:
    """A path relative to the settings file that names it, not to the working folder."""
    if not isinstance(value, str) or not value:
        return value
    is_file = value.lower().endswith((".json", ".csv", ".yaml", ".yml"))
    if name == "price_history" or (name in _FILES and is_file):
        return str(file.parent / os.path.expanduser(value))
    return value
