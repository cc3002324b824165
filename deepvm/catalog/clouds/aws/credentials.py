"""What can be known about AWS credentials and regions without boto3, which takes half a second to load.

Nothing here opens a socket or reads a key for longer than it takes to see that there is one.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from configparser import Error as IniError
from configparser import RawConfigParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from deepvm.core.spelling import did_you_mean
from deepvm.errors import RequestError

DEFAULT_REGION = "us-east-1"

# Newer partitions have longer first words (eusc-de-east-1) or two in the middle (us-gov-west-1).
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]{2,9}){1,2}-[1-9][0-9]?")

_SIGNS_IN_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CREDENTIAL_FILE",
)
_SIGNS_IN_PROFILE = (
    "aws_access_key_id",
    "credential_process",
    "credential_source",
    "login_session",
    "role_arn",
    "sso_account_id",
    "sso_session",
    "sso_start_url",
    "web_identity_token_file",
)
_SECRETS_IN_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
)
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")

# Shorter values are no keys; replacing every "x" of a message would only make it unreadable.
_SHORTEST_SECRET = 4
_KEY_ID = re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{12,}\b")
_USER_IN_URL = re.compile(r"://[^\s\"']*@")
_LONGEST_DETAIL = 240


class Region(NamedTuple):
    """A region and where its name was found.

    Attributes:
        name: such as ``us-east-1``. where: in words, for the user.
    """

    name: str
    where: str


def check_region(name: str, option: str = "region") -> str:
    """Return the name if it has the form of a region's name; whether AWS has such a region only AWS can tell.

    Args:
        name: what the user wrote.
        option: where it was written, for the error.

    Raises:
        RequestError: it cannot be the name of a region.
    """
    if not _REGION.fullmatch(name):
        allowed = "an AWS region in small letters, such as us-east-1 or ap-northeast-2"
        if _REGION.fullmatch(name[:-1]) and name[-1:].isalpha():
            allowed += f"; {name} is a zone, its region is {name[:-1]}"
        else:
            from deepvm.catalog.clouds.aws.client import known_regions  # slow to load, and only an error needs it

            meant = did_you_mean(name.replace("_", "-"), sorted(known_regions()))
            allowed += f"; {meant}" if meant else ""
        raise RequestError(option, name, allowed)
    return name


def region_of(flag: str, profile: str, environ: Mapping[str, str]) -> Region:
    """The region to ask about: flag, ``AWS_REGION``, ``AWS_DEFAULT_REGION``, the profile's, us-east-1.

    boto3 ignores ``AWS_REGION``, which every other tool of AWS reads; therefore the order is decided here.

    Args:
        flag: ``--region``, empty when absent.
        profile: ``--profile``, empty when absent.
        environ: the environment.

    Raises:
        RequestError: what was found cannot be the name of a region.
    """
    if flag:
        return Region(check_region(flag), "--region")
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if environ.get(variable):
            return Region(check_region(environ[variable], variable), f"environment variable {variable}")
    name = _profile_name(profile, environ)
    for file, sections in _files(name, environ):
        found = _profile(file, sections).get("region", "").strip()
        if found:
            where = f"profile {name} in {file}"
            return Region(check_region(found, f"region of {where}"), where)
    return Region(DEFAULT_REGION, "the default: no --region, no AWS_REGION and no region in the AWS profile")


def credentials_may_exist(profile: str, environ: Mapping[str, str], system: Path = Path("/sys")) -> bool:
    """Whether it is worth loading boto3: false only where its whole search for credentials must end empty.

    A named profile counts even if it does not exist: its owner wants to be told so.

    Args:
        profile: ``--profile``, empty when absent.
        environ: the environment.
        system: where the kernel describes the machine.
    """
    if profile or any(environ.get(variable) for variable in _SIGNS_IN_ENVIRONMENT):
        return True
    return (
        any(_has_credentials(file, sections) for file, sections in _files("default", environ))
        or _has_old_boto_file(environ)
        or _has_machine_role(environ, system)
    )


def account_tag(profile: str, environ: Mapping[str, str]) -> str:
    """A name for the files that hold what only one account may see; safe as a file name, free of secrets.

    Follows boto3's order: a profile that is asked for beats a key in the environment, which beats ``AWS_PROFILE``.

    Args:
        profile: ``--profile``, empty when absent.
        environ: the environment.
    """
    key = environ.get("AWS_ACCESS_KEY_ID", "")
    if key and not profile:
        return f"key-{_digest(key, 12)}"
    name = _profile_name(profile, environ)
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:40]
    # A name says little: the same profile may be given other keys tomorrow, and a role is somebody else on another
    # machine. Nor may two profiles share a file because their names differ in a blank only.
    return f"{plain}-{_digest(' '.join([name, *_identity(name, environ)]), 12)}"


_IDENTITY_IN_PROFILE = (
    "aws_access_key_id",
    "credential_process",
    "credential_source",
    "login_session",
    "role_arn",
    "source_profile",
    "sso_account_id",
    "sso_role_name",
    "sso_session",
)
_IDENTITY_IN_ENVIRONMENT = (
    "AWS_ROLE_ARN",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def _identity(name: str, environ: Mapping[str, str]) -> list[str]:
    """What tells one account from another behind the same name of a profile; only ever used hashed."""
    found = [f"{v}={environ[v]}" for v in _IDENTITY_IN_ENVIRONMENT if environ.get(v)]
    for file, sections in _files(name, environ):
        section = _profile(file, sections)
        found += [f"{k}={section[k].strip()}" for k in _IDENTITY_IN_PROFILE if section.get(k, "").strip()]
    return found


def profile_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The profiles of the shared files, sorted; empty when there are none or the files cannot be read."""
    names = set(_sections(_credentials_file(environ)))
    for section in _sections(_config_file(environ)):
        kind, _, name = section.partition(" ")
        if kind == "profile" or section == "default":
            names.add(name.strip().strip("\"'") or section)
    return tuple(sorted(names))


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values in the environment that must never be shown."""
    keys = [environ[name] for name in _SECRETS_IN_ENVIRONMENT if environ.get(name)]
    users = [environ[name].rpartition("@")[0].rpartition("//")[2] for name in _PROXIES if environ.get(name)]
    return (*keys, *(user.partition(":")[2] for user in users if ":" in user))


def redact(text: object, secrets: Iterable[str] = ()) -> str:
    """One short line of a foreign message, without secrets.

    Removes the given values, whatever looks like the id of a key, user and password of URLs, mark-up, and the encoded
    part of AWS's refusals, which is long and of no use to a reader.

    Args:
        text: the message, or the exception that has it.
        secrets: values to remove.
    """
    line = str(text)
    for value in sorted(set(secrets), key=len, reverse=True):
        if len(value.strip()) >= _SHORTEST_SECRET:
            for form in (value, value.strip(), quote(value, safe=""), quote(value)):
                line = line.replace(form, "***")
    line = _KEY_ID.sub("***", line)
    line = _USER_IN_URL.sub("://***@", line)
    line = re.split(r"\s*\.?\s*Encoded authorization failure message", line, maxsplit=1)[0]
    line = re.sub(r"<[^>]*>", " ", line)
    line = " ".join("".join(c if c.isprintable() else " " for c in line).split())
    return line if len(line) <= _LONGEST_DETAIL else f"{line[: _LONGEST_DETAIL - 4]} ..."


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


def _profile_name(profile: str, environ: Mapping[str, str]) -> str:
    return profile or environ.get("AWS_DEFAULT_PROFILE") or environ.get("AWS_PROFILE") or "default"


def _files(name: str, environ: Mapping[str, str]) -> tuple[tuple[Path, tuple[str, ...]], ...]:
    """Where a profile may stand: the shared files, and what its section may be called in each."""
    in_config = ("default", "profile default") if name == "default" else (f"profile {name}", f'profile "{name}"')
    return (_config_file(environ), in_config), (_credentials_file(environ), (name,))


def _credentials_file(environ: Mapping[str, str]) -> Path:
    return _path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials", environ)


def _config_file(environ: Mapping[str, str]) -> Path:
    return _path(environ.get("AWS_CONFIG_FILE") or "~/.aws/config", environ)


def _path(text: str, environ: Mapping[str, str]) -> Path:
    if text.startswith("~/") and environ.get("HOME"):
        return Path(environ["HOME"]) / text[2:]
    return Path(os.path.expanduser(text))


def _read(file: Path) -> RawConfigParser | None:
    """The file's sections, None where there is no such file.

    Raises:
        IniError, OSError, UnicodeDecodeError: there is something, and it cannot be read.
    """
    # AWS has no section of defaults, and its tools accept a profile that stands twice.
    parser = RawConfigParser(strict=False, default_section="")
    try:
        if not file.is_file():
            return None
        parser.read_string(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return parser


def _sections(file: Path) -> list[str]:
    try:
        parser = _read(file)
    except (IniError, OSError, ValueError):
        return []
    return parser.sections() if parser else []


def _profile(file: Path, sections: tuple[str, ...]) -> Mapping[str, str]:
    try:
        return _section(_read(file), sections)
    except (IniError, OSError, ValueError):
        return {}


def _section(parser: RawConfigParser | None, sections: tuple[str, ...]) -> Mapping[str, str]:
    found = next((s for s in sections if parser and parser.has_section(s)), None)
    return dict(parser.items(found)) if parser and found else {}


def _has_credentials(file: Path, sections: tuple[str, ...]) -> bool:
    try:
        profile = _section(_read(file), sections)
    except (IniError, OSError, ValueError):
        return True  # a file that cannot be read may have some; boto3 will say what is wrong with it
    return any(profile.get(sign) for sign in _SIGNS_IN_PROFILE)


def _has_old_boto_file(environ: Mapping[str, str]) -> bool:
    named = environ.get("BOTO_CONFIG")
    files = [_path(named, environ)] if named else [Path("/etc/boto.cfg"), _path("~/.boto", environ)]
    return any(_has_credentials(file, ("Credentials",)) for file in files)


def _has_machine_role(environ: Mapping[str, str], system: Path) -> bool:
    """Whether this is an EC2 machine, which may have a role; only its metadata service could tell for certain."""
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    if environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        return True

    def word(place: str) -> str:
        try:
            return (system / place).read_text(encoding="ascii", errors="replace").strip().lower()
        except OSError:
            return ""

    vendors = (word("class/dmi/id/sys_vendor"), word("class/dmi/id/board_vendor"))
    return "amazon ec2" in vendors or word("hypervisor/uuid").startswith("ec2")
