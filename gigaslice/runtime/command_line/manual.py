# SPDX-License-Identifier: Apache-2.0
"""Manual pages and shell completion, made from a command's own argparse parser: what --help says, in two other forms.

Made on demand (`gigaslice man`, `vcuda completion bash`), so neither can differ from the program that is
installed. Pure: a parser in, text out.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence

__all__ = [
    "SHELLS",
    "arguments_of",
    "bash_completion",
    "commands_of",
    "man_page",
    "offer",
    "values_of",
    "zsh_completion",
]

SHELLS = ("bash", "fish", "zsh")
_OFFERED = "offered"  # of an action: the words that `offer` was given
_FILES, _DIRECTORIES = ("FILE", "FILE|nvml", "SOCKET", "PATH"), ("DIR", "DIRECTORY")


def man_page(parser: argparse.ArgumentParser, version: str, exit_status: str) -> str:
    """The page of section 1 for the command of PARSER, in the macros of man(7). EXIT_STATUS: one paragraph."""
    name = parser.prog
    lines = [
        f'.TH {_roff(name.upper())} 1 "" "{_roff(name)} {_roff(version)}" "User Commands"',
        ".SH NAME", _roff(f"{name} - {parser.description or ''}".rstrip(" .")),
        ".SH SYNOPSIS", f".B {_roff(name)}", r"[\fIOPTION\fR...] \fICOMMAND\fR [\fIARGUMENT\fR...]",
        ".SH OPTIONS", *_options(parser),
        ".SH COMMANDS",
    ]  # fmt: skip
    for word, help_text, subcommand in commands_of(parser):
        lines += [f".SS {_roff(word)}", _roff(_usage(subcommand)), ".PP", _roff(_sentence(help_text))]
        if subcommand.description and subcommand.description != help_text:
            lines.append(_roff(_sentence(subcommand.description)))
        lines += _options(subcommand)
    lines += [".SH EXIT STATUS", _roff(exit_status)]
    return "\n".join(line for line in lines if line) + "\n"


def bash_completion(parser: argparse.ArgumentParser) -> str:
    """A script for bash: `source <(COMMAND completion bash)`."""
    name = parser.prog
    function = _function(name)
    commands = list(commands_of(parser))
    cases = "\n".join(
        f"    {_pattern(word)})\n{_case(subcommand, function)}\n      ;;"
        for word, _, subcommand in reversed(commands)
    )
    words = " ".join([*(word for word, _, _ in commands if " " not in word), *_flags(parser)])
    return f"""# bash completion of {name}; made by `{name} completion bash`
{function}_names() {{ compopt -o filenames 2>/dev/null || :; }} # directories get a slash
{function}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= word start=
  COMPREPLY=()
  case $current in
    =) current= ;; # bash takes --flag=value for three words
    --*=*) start=${{current%%=*}}= previous=${{current%%=*}} current=${{current#*=}} ;; # zsh takes it for one
  esac
  if [ "$previous" = = ]; then previous=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
    case $word in -*) ;; *) command+="${{command:+ }}$word" ;; esac
  done
  case $command in
    "")
      COMPREPLY=($(compgen -W {_quoted(words)} -- "$current"))
      ;;
{cases}
  esac
  if [ -n "$start" ]; then COMPREPLY=("${{COMPREPLY[@]/#/$start}}"); fi
}}
complete -o default -F {function} {name}
"""


def zsh_completion(parser: argparse.ArgumentParser) -> str:
    """A script for zsh: `source <(COMMAND completion zsh)`. It is that of bash, which zsh's own bashcompinit runs.

    That can give a slash to directories only by having no blank after anything, so blanks are words' own there.
    """
    name = parser.prog
    head = f"# zsh completion of {name}; made by `{name} completion zsh`"
    begin = "(( $+functions[compdef] )) || { autoload -U compinit && compinit; }"
    function = _function(name)
    return f"""{head}
{begin}
autoload -U bashcompinit && bashcompinit
{bash_completion(parser)}
{function}_names() {{ names=1; }}
{function}_zsh() {{
  local names= word
  local -a completed=()
  {function} "$@"
  for word in "${{COMPREPLY[@]}}"; do
    if [ -n "$names" ] && [ -d "$word" ]; then completed+=("$word/"); else completed+=("$word "); fi
  done
  COMPREPLY=("${{completed[@]}}")
}}
complete -o default -o nospace -F {function}_zsh {name}
"""


def commands_of(
    parser: argparse.ArgumentParser, prefix: str = ""
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Every subcommand, and every one of those, with its line of help and its parser; "dataset pack" is one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                word = prefix + choice.dest
                yield word, choice.help or "", action.choices[choice.dest]
                yield from commands_of(action.choices[choice.dest], f"{word} ")


def arguments_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The flags and arguments of PARSER that its help shows."""
    hidden = (argparse._SubParsersAction, argparse._HelpAction)
    for action in parser._actions:
        if not isinstance(action, hidden) and action.help != argparse.SUPPRESS:
            yield action


def _function(name: str) -> str:
    """What completes the command NAME in a script."""
    return "_" + re.sub(r"\W", "_", name)


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [
        flag for action in (*arguments_of(parser),) for flag in action.option_strings if flag.startswith("--")
    ] + ["--help"]


def _value(action: argparse.Action) -> str:
    """How the value of ACTION is written; empty for one that takes none."""
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def _usage(parser: argparse.ArgumentParser) -> str:
    return " ".join(parser.format_usage().removeprefix("usage: ").split())


def _options(parser: argparse.ArgumentParser) -> list[str]:
    lines = []
    for action in arguments_of(parser):
        names = ", ".join(rf"\fB{_roff(flag)}\fR" for flag in action.option_strings)
        value = rf"\fI{_roff(_value(action))}\fR" if _value(action) else ""
        text = parser._get_formatter()._expand_help(action) if action.help else ""
        lines += [".TP", " ".join(filter(None, (names, value))), _roff(_sentence(text))]
    return lines


def offer(action: argparse.Action, words: Sequence[str]) -> None:
    """Has a shell offer WORDS as values of ACTION, which whoever reads the value checks."""
    setattr(action, _OFFERED, tuple(words))


def values_of(action: argparse.Action) -> tuple[str, str]:
    """What completes a value of ACTION: "words" and the words, "files", "directories", or nothing."""
    value = _value(action)
    words = action.choices or getattr(action, _OFFERED, ())
    if words:
        return "words", " ".join(map(str, words))
    if value in _DIRECTORIES:
        return "directories", ""
    if value in _FILES:
        return "files", ""
    if "|" in value and set(value) <= set("abcdefghijklmnopqrstuvwxyz-|"):
        return "words", value.replace("|", " ")
    return "", ""


def _case(parser: argparse.ArgumentParser, function: str) -> str:
    """What can follow a subcommand: a value of the previous flag, or a flag. FUNCTION: which completes the command."""
    branches = []
    for action in arguments_of(parser):
        flags = "|".join(action.option_strings)
        if not flags or action.nargs == 0:
            continue
        kind, words = values_of(action)
        wanted = {"words": f"-W {_quoted(words)}", "directories": "-d", "files": "-f"}.get(kind)
        if wanted is None:
            branches.append(f"        {flags}) ;;")
            continue
        names = "" if kind == "words" else f"{function}_names; "
        branches.append(f'        {flags}) {names}COMPREPLY=($(compgen {wanted} -- "$current")) ;;')
    rest = " ".join(_flags(parser))
    choices = [
        str(choice)
        for action in arguments_of(parser)
        if not action.option_strings
        for choice in action.choices or ()
    ]
    choices += [word for word, _, _ in commands_of(parser) if " " not in word]
    rest = " ".join([*choices, rest])
    branches.append(f'        *) COMPREPLY=($(compgen -W {_quoted(rest)} -- "$current")) ;;')
    return "      case $previous in\n" + "\n".join(branches) + "\n      esac"


def _pattern(word: str) -> str:
    """What the words of a command line that are no flags begin with; subcommands of a command are tried before it."""
    return f"{_quoted(word)}|{_quoted(word + ' ')}*"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _sentence(text: str) -> str:
    """TEXT with a capital and a full stop, as paragraphs of a page have them."""
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if not text or text[-1] in ".!?" else ".")


def _roff(text: str) -> str:
    """TEXT as man(7) shows it: no escapes of its own, and no line that is a request."""
    safe = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + safe if safe[:1] in (".", "'") else safe
