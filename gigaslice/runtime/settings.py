# SPDX-License-Identifier: Apache-2.0
"""A role's settings: one frozen dataclass is both the table and the configuration made from it.

A role declares a dataclass that derives from `Settings`, one field per setting, each made by `setting()`. Flags,
environment variables, keys of the YAML file, help texts and the reference page all follow from that table.

A value is looked up in this order: flag, environment (GIGASLICE_<FLAG>), file (the flag in camelCase), default. Every
mistake in any of the four is collected, so one attempt shows all of them. This module is the roles' only access to the
environment. What a value means to the node (does the directory exist, does NVML load) is not checked here.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml

from gigaslice.core.errors import ConfigError
from gigaslice.runtime.command_line.manual import offer
from gigaslice.runtime.files import read_file
from gigaslice.runtime.setting_values import offered_words

__all__ = [
    "CONFIG_VARIABLE",
    "ENV_PREFIX",
    "Setting",
    "Settings",
    "add_flags",
    "environment",
    "flags_of",
    "load",
    "setting",
    "table",
]

ENV_PREFIX = "GIGASLICE_"
CONFIG_VARIABLE = ENV_PREFIX + "CONFIG"
_MAX_FILE_BYTES = 1 << 20
_METADATA = "setting"
# What the kubelet adds for a Service called "gigaslice" in the pod's namespace; not meant for this program.
_SERVICE_LINK = re.compile(r"GIGASLICE_(SERVICE_(HOST|PORT.*)|PORT(_\d+_.*)?)")

T = TypeVar("T")
S = TypeVar("S", bound="Settings")


@dataclass(frozen=True, slots=True)
class Settings:
    """Base of every role's table."""

    warnings: tuple[str, ...] = ()
    """What is odd about the configuration and does not keep the role from running."""
    defaulted: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)
    """The fields that neither a flag, the environment nor the file sets. A role made by hand has none."""

    def contradictions(self) -> list[str]:
        """One line for each way in which the values exclude each other."""
        return []


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a table. `parse` turns text into the value or raises ValueError with a sentence for the user."""

    attribute: str
    flag: str
    metavar: str
    parse: Callable[[str], object]
    default: str
    help: str

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return ENV_PREFIX + self.flag.upper().replace("-", "_")

    @property
    def key(self) -> str:
        """Name in the configuration file."""
        head, *tail = self.flag.split("-")
        return head + "".join(word.capitalize() for word in tail)


def setting(metavar: str, parse: Callable[[str], T], default: str, help: str, *, flag: str = "") -> T:  # noqa: A002
    """A field of a role's table, of the type that PARSE returns.

    Args:
        metavar: How help texts name the value.
        parse: Turns text into the value, or raises ValueError with a sentence for the user.
        default: The text that applies where the user gives none.
        help: What the setting is for, in one line.
        flag: The flag without dashes, where it differs from the field's name.
    """
    told = (flag, metavar, parse, default, help)
    field: T = dataclasses.field(default_factory=lambda: parse(default), metadata={_METADATA: told})
    return field


def table(role: type[Settings]) -> tuple[Setting, ...]:
    """The settings of ROLE: its own in the order of its fields, then those that it shares with ever more roles."""
    settings = []
    for field in sorted(dataclasses.fields(role), key=lambda field: _shared(role, field.name)):
        if _METADATA in field.metadata:
            flag, *rest = field.metadata[_METADATA]
            settings.append(Setting(field.name, flag or field.name.replace("_", "-"), *rest))
    return tuple(settings)


def _shared(role: type[Settings], attribute: str) -> int:
    """By how many of ROLE's bases the field ATTRIBUTE is declared."""
    return sum(attribute in getattr(base, "__dataclass_fields__", ()) for base in role.__mro__[1:])


def environment() -> Mapping[str, str]:
    """The process's own environment; tests pass a mapping of theirs to load() instead."""
    return os.environ


def add_flags(parser: argparse.ArgumentParser, role: type[Settings]) -> None:
    """Adds --config and the flag of every setting of ROLE to PARSER."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with any of the settings below")
    for setting in table(role):
        meaning = f"{setting.help} (default: {setting.default})".replace("%", "%%")
        action = parser.add_argument(f"--{setting.flag}", metavar=setting.metavar, help=meaning)
        offer(action, offered_words(setting.parse))


def flags_of(role: type[Settings], arguments: argparse.Namespace) -> dict[str, str | None]:
    """The flags that a parser prepared by `add_flags` has read, as `load` takes them."""
    return {
        flag: getattr(arguments, flag.replace("-", "_"))
        for flag in ("config", *(s.flag for s in table(role)))
    }


@dataclass(frozen=True, slots=True)
class _Given:
    text: str
    origin: str  # how the user wrote it, for messages
    by_user: bool = True


def load(
    role: type[S],
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    *,
    mistakes: tuple[str, ...] = (),
) -> S:
    """Builds the configuration of ROLE.

    Args:
        role: The role's table.
        flags: Flag -> text, None or absent where the user gave none; "config" names the file.
        environ: The environment.
        mistakes: Those that the command line parser has found already.

    Raises:
        ConfigError: With one line per mistake.
    """
    all_mistakes = list(mistakes)
    path = flags.get("config") or environ.get(CONFIG_VARIABLE)
    from_file = _read_file(role, path, all_mistakes) if path else {}
    values: dict[str, Any] = {}
    defaulted: set[str] = set()
    for setting in table(role):
        given = _look_up(setting, flags, environ, from_file)
        if not given.by_user:
            defaulted.add(setting.attribute)
        try:
            values[setting.attribute] = setting.parse(given.text)
        except ValueError as error:
            all_mistakes.append(f"{given.origin} {_quoted(given.text)}: {error}")
    if not all_mistakes:
        config = role(**values, warnings=_unknown_variables(role, environ), defaulted=frozenset(defaulted))
        all_mistakes.extend(config.contradictions())
    if all_mistakes:
        raise ConfigError(all_mistakes)
    return config


def _look_up(
    setting: Setting,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    from_file: Mapping[str, _Given],
) -> _Given:
    flag = flags.get(setting.flag)
    if flag is not None:
        return _Given(flag, f"--{setting.flag}")
    if setting.variable in environ:
        return _Given(environ[setting.variable], f"environment {setting.variable}")
    return from_file.get(setting.key) or _Given(
        setting.default, f"default of --{setting.flag}", by_user=False
    )


def _read_file(role: type[Settings], path: str, mistakes: list[str]) -> dict[str, _Given]:
    """The file's values as the text that is written there: YAML's own meaning of on, 010 and 1:30 does not apply."""
    try:
        raw = read_file(path, _MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise ValueError("larger than 1 MiB; that is no configuration")
        root = yaml.compose(raw.decode("utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        mistakes.append(f"--config {_quoted(path)}: {error.strerror}; name a readable YAML file")
        return {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mistakes.append(f"--config {_quoted(path)}: not YAML: {' '.join(str(error).split())}")
        return {}
    if root is None or _is_null(root):
        return {}
    if not isinstance(root, yaml.MappingNode):
        mistakes.append(f'--config {_quoted(path)}: must be a mapping such as "slice: 1GiB"')
        return {}
    return _checked_keys(role, path, root, mistakes)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and str(node.tag).endswith(":null")


def _checked_keys(
    role: type[Settings], path: str, root: yaml.MappingNode, mistakes: list[str]
) -> dict[str, _Given]:
    keys = [setting.key for setting in table(role)]
    values: dict[str, _Given] = {}
    for name, node in root.value:
        key = str(name.value) if isinstance(name, yaml.ScalarNode) else "…"
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(keys)}"
            mistakes.append(f"file {path}: unknown key {_quoted(key)}; {hint}")
        elif key in values:
            mistakes.append(f"file {path}: {key} is there twice; leave one of the two lines")
        elif not isinstance(node, yaml.ScalarNode):
            mistakes.append(f"file {path}: {key} must be a text or a number")
        elif _is_null(node):
            mistakes.append(
                f"file {path}: {key} has no value; write one, or leave the line out for the default"
            )
        else:
            values[key] = _Given(str(node.value), f"file {path}: {key}")
    return values


def _unknown_variables(role: type[Settings], environ: Mapping[str, str]) -> tuple[str, ...]:
    variables = {setting.variable for setting in table(role)} | {CONFIG_VARIABLE}
    odd = (
        v
        for v in environ
        if v.startswith(ENV_PREFIX) and v not in variables and not _SERVICE_LINK.fullmatch(v)
    )
    return tuple(f"environment {name} is not an option and has no effect" for name in sorted(odd))


def _quoted(text: str) -> str:
    return '"' + text.encode("unicode_escape").decode("ascii")[:200] + '"'
