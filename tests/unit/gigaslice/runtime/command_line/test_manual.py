"""Manual pages and completion of both commands, from the parsers they have."""

import re
import shutil
import subprocess

import pytest

import vcuda.cli
from gigaslice.runtime.command_line import manual
from gigaslice_cli import frame
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
    assert script.endswith(printed(capsys, name, "completion", "bash"))
    assert "bashcompinit" in script.partition("# bash")[0]
    assert not re.search(r"\[@\]:\d+:[A-Z]", script), "zsh takes a letter there for a modifier"
    if zsh := shutil.which("zsh"):
        subprocess.run([zsh, "-n"], input=script, text=True, timeout=60, check=True)


def test_fish_offers_values_of_a_flag(capsys):
    script = printed(capsys, "gigaslice", "completion", "fish")
    (line,) = [line for line in script.splitlines() if "_from nodes'" in line and " -l format" in line]
    assert " -s o -l output -x -a 'table wide json yaml name svg' -d " in line
