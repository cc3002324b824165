"""Whether AWS credentials may exist, and whose, without loading boto3 (half a second) or opening a socket."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from configparser import Error as IniError
from configparser import RawConfigParser
from pathlib import Path
from typing import NamedTuple

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


class ProfilePart(NamedTuple):
    """What one file says of a profile.

    Attributes:
        file: the file. keys: of the profile's section, empty where there is none. readable: whether it could be read.
    """

    file: Path
    keys: Mapping[str, str]
    readable: bool = True


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
        any(_may_hold_credentials(part) for part in profile_parts("default", environ))
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
    name = profile_name(profile, environ)
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
    for part in profile_parts(name, environ):
        found += [f"{k}={part.keys[k].strip()}" for k in _IDENTITY_IN_PROFILE if part.keys.get(k, "").strip()]
    return found


def profile_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The profiles of the shared files, sorted; empty when there are none or the files cannot be read."""
    credentials, config = _read(_credentials_file(environ)), _read(_config_file(environ))
    names = set(credentials.sections() if credentials else ())
    for section in config.sections() if config else ():
        kind, _, name = section.partition(" ")
        if kind == "profile" or section == "default":
            names.add(name.strip().strip("\"'") or section)
    return tuple(sorted(names))


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


def profile_name(profile: str, environ: Mapping[str, str]) -> str:
    """The profile in use: the one asked for, else the environment's, else ``default``."""
    return profile or environ.get("AWS_DEFAULT_PROFILE") or environ.get("AWS_PROFILE") or "default"


def _credentials_file(environ: Mapping[str, str]) -> Path:
    return _path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials", environ)


def _config_file(environ: Mapping[str, str]) -> Path:
    return _path(environ.get("AWS_CONFIG_FILE") or "~/.aws/config", environ)


def _path(text: str, environ: Mapping[str, str]) -> Path:
    if text.startswith("~/") and environ.get("HOME"):
        return Path(environ["HOME"]) / text[2:]
    return Path(os.path.expanduser(text))


def profile_parts(name: str, environ: Mapping[str, str]) -> tuple[ProfilePart, ProfilePart]:
    """What the shared config and credentials files, in this order, say of a profile."""
    in_config = ("default", "profile default") if name == "default" else (f"profile {name}", f'profile "{name}"')
    return _part(_config_file(environ), in_config), _part(_credentials_file(environ), (name,))


def _part(file: Path, sections: tuple[str, ...]) -> ProfilePart:
    parser = _read(file)
    if parser is None:
        return ProfilePart(file, {}, readable=False)
    found = next((s for s in sections if parser.has_section(s)), None)
    return ProfilePart(file, dict(parser.items(found)) if found else {})


def _read(file: Path) -> RawConfigParser | None:
    """The file's sections, none where there is no such file; None where it cannot be read."""
    # AWS has no section of defaults, and its tools accept a profile that stands twice.
    parser = RawConfigParser(strict=False, default_section="")
    try:
        if file.is_file():
            parser.read_string(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (IniError, OSError, ValueError):
        return None
    return parser


def _may_hold_credentials(part: ProfilePart) -> bool:
    # botocore will say what is wrong with a file that cannot be read.
    return not part.readable or any(part.keys.get(sign) for sign in _SIGNS_IN_PROFILE)


def _has_old_boto_file(environ: Mapping[str, str]) -> bool:
    named = environ.get("BOTO_CONFIG")
    files = [_path(named, environ)] if named else [Path("/etc/boto.cfg"), _path("~/.boto", environ)]
    return any(_may_hold_credentials(_part(file, ("Credentials",))) for file in files)


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
