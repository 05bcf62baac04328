"""The command `gigaslice`: reads what the user wrote, runs a role, and turns every error into lines and an exit code.

0: done. 1: what was asked failed. 2: a mistake in flags, environment or files, one line each. 3: the machine lacks
something, such as a driver or a permission. Nothing but this module prints to the user or decides an exit code.

A role is imported when it is asked for: the agent's is half a thousand modules and takes a second on a slow machine,
which a command that reads one file, or a mistake in a flag, should not wait for.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import vcuda
from agent import config
from gigaslice.errors import ConfigError, GigasliceError, MissingError, MistakesError
from gigaslice.runtime import settings
from gigaslice.runtime.files import remedy
from gigaslice.text import plain
from vcuda import manual

__all__ = ["main"]

_DRAWINGS = ("text", "dot", "svg")  # of the topology
_EXIT_STATUS = (
    "0: done. 1: what was asked failed. 2: a mistake in flags, environment or files, one line each. 3: the machine "
    "lacks something, such as a driver or a permission."
)
_OK, _FAILED, _MISTAKE, _MISSING = 0, 1, 2, 3


class _Parser(argparse.ArgumentParser):
    """Collects instead of exiting, so that a mistake is one line and is reported with the others."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError([f"{message}; {self.prog} --help shows what is possible"])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command ARGV (without the program's name; sys.argv if None) and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except MistakesError as error:
        return _report(_MISTAKE, *error.mistakes)
    except MissingError as error:
        return _report(_MISSING, str(error))
    except GigasliceError as error:
        return _report(_FAILED, str(error))
    except vcuda.VcudaError as error:
        return _report(error.exit_code, str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _FAILED
    except OSError as error:  # of the machine, not of this program
        _log(error, "console" if "debug" in arguments else "")
        name = f"{error.filename}: " if error.filename else ""
        return _report(_FAILED, f"{name}{error.strerror or error}; {remedy(error)}")
    except Exception as error:  # noqa: BLE001  (the outermost border: a user gets a line, a developer the stack)
        _log(error, "console")
        detail = " ".join(str(error).split())
        return _report(
            _FAILED,
            f"internal error: {type(error).__name__}: {detail}; please report it with the lines above",
        )


def _log(error: Exception, style: str) -> None:
    """Logs ERROR with its stack: as the agent's settings have it where it has begun, else in STYLE, if any."""
    from gigaslice.runtime import logs
    from gigaslice.runtime.structlog_lean import structlog

    if not structlog.is_configured():
        if not style:
            return
        logs.set_up("error", style)
    logs.internal_error(error)


def _report(code: int, *lines: str) -> int:
    for line in lines:
        print(f"gigaslice: {plain(line)}", file=sys.stderr)
    return code


def _dispatch(arguments: list[str]) -> int:
    parser = _parser()
    known, unknown = parser.parse_known_args(arguments)
    mistakes = tuple(_unknown(one, known.flags) for one in unknown)
    if known.command in ("node", "doctor"):
        flags = settings.flags_of(config.Config, known)
        loaded = config.load(flags, settings.environment(), mistakes=mistakes)
        return _examine(loaded) if known.command == "doctor" else _serve(loaded)
    if mistakes:
        raise ConfigError(mistakes)
    if known.command == "version":
        print(f"gigaslice {vcuda.__version__}")
        return _OK
    if known.command == "man":
        print(manual.man_page(parser, vcuda.__version__, _EXIT_STATUS), end="")
        return _OK
    if known.command == "completion":
        print(manual.bash_completion(parser), end="")
        return _OK
    _COMMANDS[known.command](known)
    return _OK


def _serve(loaded: config.Config) -> int:
    gc.disable()  # collections between imports find nothing and take a tenth of their time
    from agent.roles import node

    gc.enable()
    node.run(loaded)
    return _OK


def _resize(known: argparse.Namespace) -> None:
    from agent.commands import resize

    print(resize.describe(resize.ask(known)))


def _topology(known: argparse.Namespace) -> None:
    from agent.commands import topology
    from agent.roles import node

    loaded = config.load({"inventory": known.inventory, "slice": known.slice}, settings.environment())
    inventory = node.look(loaded)
    _report(_OK, *loaded.warnings, *inventory.warnings)
    print(topology.FORMATS[known.format](topology.draw(inventory)))


def _cordon(known: argparse.Namespace) -> None:
    from agent.commands import cordon

    print(cordon.cordon(Path(known.state_dir), known.gpu, known.reason, time.time()))


def _uncordon(known: argparse.Namespace) -> None:
    from agent.commands import cordon

    print(cordon.uncordon(Path(known.state_dir), known.gpu))


def _status(known: argparse.Namespace) -> None:
    from agent.commands import status

    state_dir = Path(known.state_dir)
    rows, gpus = status.collect(state_dir), status.gpus(state_dir)
    if known.json:
        print(json.dumps(status.as_json(rows, gpus), indent=2))
    else:
        print("\n\n".join([status.as_table(rows), *([status.gpus_table(gpus)] if gpus else [])]))


_COMMANDS = {
    "resize": _resize,
    "topology": _topology,
    "cordon": _cordon,
    "uncordon": _uncordon,
    "status": _status,
}


def _examine(loaded: config.Config) -> int:
    from agent.commands import doctor
    from agent.roles import node

    failed = False
    for finding, line in doctor.as_lines(doctor.examine(loaded, node.look)):
        failed = failed or finding.level == "fail"
        print(line, flush=True)
    return _FAILED if failed else _OK


def _unknown(argument: str, flags: Sequence[str]) -> str:
    name = argument.partition("=")[0]
    near = difflib.get_close_matches(name, flags, n=1)
    hint = f"did you mean {near[0]}?" if near else "gigaslice --help shows what is possible"
    return f"unknown argument {argument!r}; {hint}"


def _add_resize(commands: argparse._SubParsersAction[_Parser], state_dir: str) -> None:
    parser = commands.add_parser(
        "resize",
        help="change what a running container may use",
        description="Takes effect at once, and lasts until the pod goes. Asks this node's agent; needs root.",
        allow_abbrev=False,
    )
    parser.add_argument("pod", metavar="POD", help="name of the pod, or NAMESPACE/NAME")
    for flag, metavar, text in (
        ("--namespace", "NAME", "namespace of the pod (default: default)"),
        ("--container", "NAME", "which container, where several of the pod have slices"),
        ("--gpu", "UUID", "which GPU, where the container has several (default: each of them)"),
        ("--memory", "SIZE", "memory of each such GPU, such as 12GiB; rounded up to whole MiB"),
        ("--cores", "PERCENT", "share of each such GPU's compute, 0 for none of its own"),
    ):
        parser.add_argument(flag, metavar=metavar, help=text)
    parser.add_argument("--state-dir", metavar="DIR", default=state_dir, help=f"default: {state_dir}")
    flags = ["--namespace", "--container", "--gpu", "--memory", "--cores", "--state-dir"]
    parser.set_defaults(flags=flags)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gigaslice", description="Shares NVIDIA GPUs between containers by the gigabyte.")
    parser.add_argument(
        "--version", action="version", version=f"gigaslice {vcuda.__version__}", help="show the version"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("node", "serve the GPUs of this node to the kubelet"),
        ("doctor", "look whether an agent with these settings would work here"),
    ):
        one = commands.add_parser(
            name,
            help=text,
            description="Flags can also be set in the environment (GIGASLICE_STATE_DIR) or in the file (stateDir).",
            allow_abbrev=False,
        )
        settings.add_flags(one, config.Config)
        one.set_defaults(flags=["--config", *(f"--{field.flag}" for field in config.SETTINGS)])
    status_parser = commands.add_parser("status", help="show who holds what on this node", allow_abbrev=False)
    state_dir = next(field.default for field in config.SETTINGS if field.flag == "state-dir")
    status_parser.add_argument("--state-dir", metavar="DIR", default=state_dir, help=f"default: {state_dir}")
    status_parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    status_parser.set_defaults(flags=["--state-dir", "--json"])
    _add_cordon(commands, state_dir)
    _add_resize(commands, state_dir)
    topology_parser = commands.add_parser(
        "topology",
        help="show how the GPUs are joined and what that costs",
        description="The resource-access-cost tree by which GPUs are chosen: the farther apart, the higher.",
        allow_abbrev=False,
    )
    for name in ("inventory", "slice"):
        field = next(field for field in config.SETTINGS if field.flag == name)
        text = f"{field.help} (default: {field.default})"
        topology_parser.add_argument(f"--{name}", metavar=field.metavar, help=text)
    topology_parser.add_argument(
        "--format",
        choices=_DRAWINGS,
        default="text",
        help="text (default), Graphviz dot, or SVG",
    )
    topology_parser.set_defaults(flags=["--inventory", "--slice", "--format"])
    version_parser = commands.add_parser("version", help="show the version", allow_abbrev=False)
    version_parser.set_defaults(flags=[])
    man_parser = commands.add_parser(
        "man",
        help="print the manual page",
        description="gigaslice man | man -l -",
        allow_abbrev=False,
    )
    man_parser.set_defaults(flags=[])
    completion_parser = commands.add_parser(
        "completion",
        help="print a script that completes this command in a shell",
        description="source <(gigaslice completion bash)",
        allow_abbrev=False,
    )
    completion_parser.add_argument("shell", metavar="SHELL", choices=manual.SHELLS, help="bash")
    completion_parser.set_defaults(flags=[])
    return parser


def _add_cordon(commands: argparse._SubParsersAction[_Parser], state_dir: str) -> None:
    for name, text in (
        ("cordon", "give a GPU to no new container; what runs on it goes on"),
        ("uncordon", "give a GPU to new containers again"),
    ):
        parser = commands.add_parser(name, help=text, allow_abbrev=False)
        parser.add_argument("gpu", metavar="GPU", help="UUID, the beginning of one, or index as in status")
        if name == "cordon":
            parser.add_argument("--reason", metavar="TEXT", default="", help="shown wherever the cordon is")
        parser.add_argument("--state-dir", metavar="DIR", default=state_dir, help=f"default: {state_dir}")
        parser.set_defaults(flags=["--reason", "--state-dir"] if name == "cordon" else ["--state-dir"])
