# SPDX-License-Identifier: Apache-2.0
"""Manual pages and completion of both commands, from the parsers they have."""

import os
import re
import shutil
import subprocess

import pytest

import vcuda.cli
from gigaslice.runtime.command_line import manual
from gigaslice_cli import frame
from tests.fakes.terminal import Terminal
from vcuda.version import VERSION

COMMANDS = {"gigaslice": frame, "vcuda": vcuda.cli}
PARSERS = {"gigaslice": frame.make_parser, "vcuda": vcuda.cli.make_parser}
MACROS = {".TH", ".SH", ".SS", ".TP", ".B", ".PP"}


def printed(capsys, name, *words):
    try:
        assert COMMANDS[name].main(list(words)) == 0
    except SystemExit as end:  # argparse's own --version
        assert end.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_version_is_asked_for_as_everywhere(name, capsys):
    assert printed(capsys, name, "--version") == f"{name} {VERSION}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_every_command_and_flag_of_the_help(name, capsys):
    page = printed(capsys, name, "man")
    parser = PARSERS[name]()
    flags = {flag for _, _, one in manual.commands_of(parser) for flag in manual._flags(one)} - {"--help"}
    assert len(flags) > 5
    for flag in flags:
        assert rf"\fB{flag.replace('-', chr(92) + '-')}\fR" in page
    for word, _, _ in manual.commands_of(parser):
        assert f".SS {manual._roff(word)}\n" in page
    assert "%" not in re.sub(r"\d%(?!%)", "", page), "no format of argparse is left, other than numbers"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_is_one(name, capsys):
    page = printed(capsys, name, "man")
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests <= MACROS
    assert set(re.findall(r"\\(.)", page)) <= set("-ef&"), "escapes that man(7) has"
    if groff := shutil.which("groff"):
        done = subprocess.run(
            [groff, "-man", "-ww", "-z", "-Kutf8"],
            input=page,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


def completed(capsys, name, line):
    """What bash offers for the last word of LINE."""
    script = printed(capsys, name, "completion", "bash")
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    run = f"{script}\nCOMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}\n_{name}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    bash = shutil.which("bash")
    assert bash, "bash is missing: the Makefile needs it, too"
    done = subprocess.run([bash, "-euc", run], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_commands_flags_and_values_are_completed(capsys, tmp_path):
    assert {"node", "status", "cordon", "--version"} <= completed(capsys, "gigaslice", "gigaslice ")
    assert completed(capsys, "gigaslice", "gigaslice unc") == {"uncordon"}
    assert completed(capsys, "gigaslice", "gigaslice node --metrics-t") == {"--metrics-token-file"}
    assert completed(capsys, "gigaslice", "gigaslice topology --format ") == {"text", "dot", "svg"}
    assert "pack" in completed(capsys, "gigaslice", "gigaslice dataset ")
    assert "pack" not in completed(capsys, "gigaslice", "gigaslice ")
    assert completed(capsys, "gigaslice", "gigaslice dataset pack --for") == {"--force"}
    assert completed(capsys, "gigaslice", "gigaslice dataset pack from to --ch") == {"--check"}
    assert completed(capsys, "gigaslice", "gigaslice node --overuse ") == {"report", "dry-run", "evict"}
    assert completed(capsys, "gigaslice", "gigaslice completion ") >= {"bash"}
    assert "--memory" in completed(capsys, "vcuda", "vcuda run --mem")
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    state_dir = completed(capsys, "gigaslice", f"gigaslice status --state-dir {tmp_path}/")
    assert state_dir == {f"{tmp_path}/directory"}
    assert completed(capsys, "gigaslice", f"gigaslice node --config {tmp_path}/f") == {f"{tmp_path}/file"}


def test_text_cannot_become_a_request_of_the_page():
    assert manual._roff(".so /etc/passwd") == r"\&.so /etc/passwd"
    assert manual._roff("'x") == r"\&'x"
    assert manual._roff(r"a\fBb") == r"a\efBb"


@pytest.mark.parametrize("name", COMMANDS)
def test_fish_has_every_command_and_flag(name, capsys):
    script = printed(capsys, name, "completion", "fish")
    lines = script.splitlines()
    for word, _, parser in manual.commands_of(PARSERS[name]()):
        *_, last = word.split()
        assert any(f" -a '{last}' -d " in line for line in lines), word
        for flag in set(manual._flags(parser)) - {"--help"}:
            seen = f"__fish_seen_subcommand_from {last}"
            assert any(seen in line and f" -l {flag[2:]}" in line for line in lines), (word, flag)
    if fish := shutil.which("fish"):
        subprocess.run([fish, "--no-execute"], input=script, text=True, timeout=60, check=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_zsh_runs_the_completion_of_bash(name, capsys):
    script = printed(capsys, name, "completion", "zsh")
    assert printed(capsys, name, "completion", "bash") in script
    assert "bashcompinit" in script.partition("# bash")[0]
    assert not re.search(r"\[@\]:\d+:[A-Z]", script), "zsh takes a letter there for a modifier"
    if zsh := shutil.which("zsh"):
        subprocess.run([zsh, "-n"], input=script, text=True, timeout=60, check=True)


def test_fish_offers_values_of_a_flag(capsys):
    script = printed(capsys, "gigaslice", "completion", "fish")
    (line,) = [line for line in script.splitlines() if "_from nodes'" in line and " -l format" in line]
    assert " -s o -l output -x -a 'table wide json yaml name svg' -d " in line


UNIQUE = [
    ("gigaslice unc", "gigaslice uncordon"),
    ("gigaslice dataset pac", "gigaslice dataset pack"),
    ("gigaslice node --metrics-t", "gigaslice node --metrics-token-file"),
    ("gigaslice nodes --format js", "gigaslice nodes --format json"),
    ("gigaslice nodes -o ya", "gigaslice nodes -o yaml"),
    ("gigaslice nodes --format=js", "gigaslice nodes --format=json"),
    ("gigaslice node --placement ga", "gigaslice node --placement gaia"),
    ("gigaslice node --log-level=wa", "gigaslice node --log-level=warning"),
    ("vcuda run --mem", "vcuda run --memory"),
    ("vcuda ps --wa", "vcuda ps --watch"),
]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_a_real_fish_completes(capsys, tmp_path):
    for name in COMMANDS:
        (tmp_path / f"{name}.fish").write_text(printed(capsys, name, "completion", "fish"))
    (tmp_path / "directory").mkdir()
    asked = [*(line for line, _ in UNIQUE), f"gigaslice status --state-dir {tmp_path}/dir", "gigaslice "]
    words = " ".join(f"'{line}'" for line in asked)
    run = f"source {tmp_path}/gigaslice.fish; source {tmp_path}/vcuda.fish\n"
    run += f"for line in {words}; complete -C $line; echo; end"
    done = subprocess.run(
        ["fish", "--no-config", "-c", run],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], "TERM": "dumb"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    *answers, directory, commands, rest = done.stdout.split("\n\n")
    assert [answer.split("\t")[0] for answer in answers] == [full.split()[-1] for _, full in UNIQUE]
    assert directory.split("\t")[0] == f"{tmp_path}/directory/"
    assert {"nodes", "dataset", "uncordon"} <= {line.split("\t")[0] for line in commands.splitlines()}
    assert "\npack\t" not in commands and rest == ""


SHELLS = {
    "bash": (
        ["--noprofile", "--rcfile", "{home}/rc"],
        """shown() { echo "LINE<$READLINE_LINE>"; READLINE_LINE=; }; bind -x '"\\C-x": shown'; PS1='ready> '""",
    ),
    "zsh": (
        ["-o", "no_global_rcs"],
        """shown() { print -r -- "LINE<$BUFFER>"; BUFFER=; }; zle -N shown; bindkey '^X' shown; PS1='ready> '""",
    ),
}
"""How to start it, and what makes Ctrl-X show the line and take it away."""


@pytest.mark.parametrize("name", SHELLS)
def test_a_real_shell_completes(name, capsys, tmp_path):
    """In a terminal, by the Tab key."""
    shell = shutil.which(name)
    if shell is None:
        pytest.skip(f"{name} is not installed")
    options, setting_up = SHELLS[name]
    lines = []
    for command in COMMANDS:
        (tmp_path / command).write_text(printed(capsys, command, "completion", name))
        lines.append(f"source {tmp_path / command}\n")
    for rc in ("rc", ".zshrc"):
        (tmp_path / rc).write_text("".join([*lines, setting_up, "\n"]))
    (tmp_path / "directory").mkdir()
    (tmp_path / "uncordon").mkdir()  # which a command is, too
    start = f"gigaslice status --state-dir {tmp_path}"
    typed = [*UNIQUE, (f"{start}/dir", f"{start}/directory/"), ("gigaslice topol", "gigaslice topology ")]
    home = {"HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "200"}
    words = [shell, *(option.format(home=tmp_path) for option in options), "-i"]
    with Terminal(words, env={"PATH": os.environ["PATH"], **home}, cwd=tmp_path) as terminal:
        terminal.read_until("ready> ")
        for line, full in typed:
            terminal.type(f"{line}\t\x18")
            completed_line = terminal.read_until("LINE<([^>]*)>")[1]
            assert completed_line.rstrip() == full.rstrip()
            assert completed_line.endswith("/" if full.endswith("/") else " "), "one can go on typing"
