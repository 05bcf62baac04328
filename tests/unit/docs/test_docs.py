# SPDX-License-Identifier: Apache-2.0
"""What the pages say exists: commands, flags, variables, targets, files, log events, links."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from agent import config
from agent.inventory.static import parse_inventory
from deploy.generated import old_files
from gigaslice.core.kube.reasons import REASONS
from gigaslice.runtime.settings import CONFIG_VARIABLE
from gigaslice_cli import frame
from tests.unit.docs import tables
from tests.unit.docs.page_tables import blocks
from vcuda import cli as vcuda_cli
from vcuda import contract

ROOT = Path(__file__).resolve().parents[3]
PYTHON = sorted(
    path for top in ("agent", "gigaslice", "gigaslice_cli") for path in (ROOT / top).rglob("*.py")
)
TOP = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "RELEASING.md", "SECURITY.md")
]
PAGES = [
    *TOP, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "adr").glob("*.md")),
    *sorted((ROOT / "gigaslice").rglob("*.md")),
]  # fmt: skip
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
COMMANDS = {"gigaslice": frame.make_parser, "vcuda": vcuda_cli.make_parser}


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=names)


def fences(page: Path, language: str = r"\w+") -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", page.read_text())


def prose(page: Path) -> str:
    return re.sub(r"(?ms)^```.*?^```$", "", page.read_text())


def code_spans(page: Path) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", prose(page)))


# --- links and files -------------------------------------------------------------------------------------------------


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not target.startswith("https://"):
            assert (page.parent / target.partition("#")[0]).exists(), target


@every_page
def test_files_that_are_named_exist(page: Path) -> None:
    for span in code_spans(page):
        if re.fullmatch(r"(agent|gigaslice|gigaslice_cli|native|vcuda|tests|docs|proto|\.ci)/[\w./-]+", span):
            assert (ROOT / span).exists(), span


ARCHITECTURE = ROOT / "docs" / "architecture.md"


def folders(*tops: str) -> set[str]:
    """The folders below TOPS that have files of ours, as paths from the root."""
    run = ["git", "ls-files", "--", *tops]
    if (ROOT / ".git").exists():
        files = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    else:
        files = [
            names(path)
            for top in tops
            for path in (ROOT / top).rglob("*")
            if path.suffix in {".py", ".c", ".h"}
        ]
    folders = set()
    for parts in (Path(file).parts for file in files):
        depth = 3 if parts[:2] in {("gigaslice", "core"), ("gigaslice", "roles")} else 2
        if len(parts) > depth:
            folders.add("/".join(parts[:depth]))
    return folders


def test_the_map_shows_the_tree() -> None:
    text = ARCHITECTURE.read_text()
    tree = text.partition("## The tree")[2].partition("\n## ")[0]
    tops = {line.split()[0].rstrip("/") for line in fences(ARCHITECTURE, "text")[0].splitlines()}
    assert tops >= {"agent", "gigaslice", "gigaslice_cli", "vcuda", "native", "proto", "tests"}
    assert all((ROOT / top).is_dir() for top in tops)
    rows = {name for line in tree.splitlines() if line.startswith("| `") for name in
            re.findall(r"`([^`]+)`", line.split("|")[1])}  # fmt: skip
    assert rows == folders("agent", "gigaslice", "gigaslice_cli", "vcuda", "native")


def test_what_the_map_names_exists() -> None:
    """Files by their path, and functions and methods: each is defined in Python or C."""
    spans = code_spans(ARCHITECTURE)
    files = {span for span in spans if re.fullmatch(r"[\w./-]+\.(py|c|h|S|def|md)", span)}
    assert len(files) > 40
    assert [file for file in files if not (ROOT / file).exists()] == []
    python = {file: (ROOT / file).read_text() for file in files if file.endswith(".py")}
    for span in spans:
        if match := re.fullmatch(r"([A-Z]\w+)\.([a-zA-Z_]\w*)", span):
            owner = rf"(?ms)^class {match[1]}\b.*?^    (async )?def {match[2]}\("
            assert any(re.search(owner, source) for source in python.values()), span
    native = "".join(path.read_text() for path in (ROOT / "native").rglob("*.[ch]"))
    functions = {span for span in spans if re.fullmatch(r"(vc|charge|ledger|runtime)_\w+", span)}
    assert len(functions) > 4
    assert [name for name in functions if not re.search(rf"\b{name}\([^;]*\) {{", native)] == []


def test_the_glossary_is_short_and_found() -> None:
    assert len((ROOT / "docs" / "glossary.md").read_text().splitlines()) <= 42
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ARCHITECTURE):
        assert "glossary.md" in page.read_text()


# --- commands --------------------------------------------------------------------------------------------------------


def targets() -> set[str]:
    run = ["make", "-C", str(ROOT), "--no-print-directory", "help"]
    text = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout
    return {line.split()[0] for line in text.splitlines()}


def test_every_make_target_that_is_named_exists() -> None:
    known = targets()
    for page in PAGES:
        lines = [*code_spans(page), *(line for fence in fences(page, "sh") for line in fence.splitlines())]
        for line in lines:
            words = shlex.split(line.partition("#")[0]) if line.startswith("make") else []
            if words[:1] == ["make"]:
                assert [w for w in words[1:] if "=" not in w and w[0] != "-" and w not in known] == [], (
                    f"{names(page)}: {line}"
                )


def test_every_make_target_is_named() -> None:
    text = "".join(page.read_text() for page in TOP)
    wanted = {"demo", "test", "check", "fmt", "bench", "test-gpu", "image", "help"}
    assert {name for name in wanted if f"make {name}" not in text} == set()
    assert wanted <= targets()


HELM = ("install", "upgrade", "uninstall", "rollback", "history", "template")


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every call of one of our commands in a shell block or a code span, with the page; from the command's name on."""
    for page in PAGES:
        lines = [line for fence in fences(page, "sh") for line in fence.splitlines()]
        for line in [*lines, *code_spans(page)]:
            words = line.partition(" # ")[0].replace("…", " ").split()
            # A namespace and a release are named gigaslice, too.
            named = {at + 1 for at, word in enumerate(words) if word in ("-n", "--namespace", *HELM)}
            starts = [at for at, word in enumerate(words) if Path(word).name in COMMANDS and at not in named]
            if starts and (line in lines or starts[0] == 0):
                yield names(page), [Path(words[starts[0]]).name, *words[starts[0] + 1 :]]


def test_every_command_and_option_that_is_named_exists() -> None:
    seen = 0
    for page, (name, *words) in command_lines():
        parser = COMMANDS[name]()
        own = words[: words.index("--")] if "--" in words else words
        if own and not own[0].startswith("-"):
            parsers = tables.subcommands(parser)
            assert own[0] in parsers, f"{page}: {name} {own[0]}"
            parser = parsers.get(" ".join(own[:2]), parsers[own[0]])
        known = {option for action in parser._actions for option in action.option_strings}
        options = [word.partition("=")[0] for word in own if word.startswith("-")]
        assert [option for option in options if option not in known] == [], (
            f"{page}: {name} {' '.join(words)}"
        )
        seen += 1
    assert seen > 20


def test_every_flag_in_a_sentence_exists() -> None:
    parsers = [
        *tables.subcommands(frame.make_parser()).values(),
        *tables.subcommands(vcuda_cli.make_parser()).values(),
    ]
    known = {option for parser in parsers for action in parser._actions for option in action.option_strings}
    for page in PAGES:
        for span in code_spans(page):
            if re.fullmatch(r"--[a-z-]+([= ].*)?", span):
                assert re.split("[= ]", span)[0] in known, f"{names(page)}: {span}"
    printed = (ROOT / "docs" / "explain.md").read_text()  # where the flag stands within a program's sentence
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", printed)) <= known


# --- the reference ---------------------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_code() -> None:
    pages = {page: page.read_text() for page in tables.PAGES}
    assert sorted(name for text in pages.values() for name in blocks(text)) == sorted(tables.TABLES)
    assert old_files(tables.made()) == [], "`make tables` writes them anew"


def test_every_setting_of_the_node_is_there() -> None:
    table = blocks(REFERENCE)["gigaslice node"]
    for field in config.SETTINGS:
        assert f"`--{field.flag}`" in table and f"`{field.variable}`" in table and f"`{field.key}`" in table
    parser = tables.subcommands(frame.make_parser())["node"]
    flags = {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}
    assert flags == {"--config", *(f"--{field.flag}" for field in config.SETTINGS)}
    assert "`--config FILE`" in REFERENCE and f"`{CONFIG_VARIABLE}`" in REFERENCE


def test_every_command_is_there() -> None:
    for name, parser in COMMANDS.items():
        for subcommand in tables.subcommands(parser()):
            assert f"`{name} {subcommand}`" in REFERENCE


def test_every_variable_of_the_library_is_there() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "native").rglob("*.c"))
    read = set(re.findall(r'(?:variable|getenv)\("(VCUDA_\w+)"\)', sources))
    known = {
        contract.ENV_DIR,
        contract.ENV_QUOTA,
        contract.ENV_MEMORY_LIMIT,
        contract.ENV_PHYSICAL_LIMIT,
        contract.ENV_CORES,
        contract.ENV_LOG,
        contract.ENV_REFUSALS,
    }
    assert read == known
    table = REFERENCE.partition("## Environment of the library")[2]
    assert [name for name in read if f"| `{name}` |" not in table] == []
    mentioned = {name for page in PAGES for name in re.findall(r"\bVCUDA_[A-Z_]+\b", page.read_text())}
    assert mentioned <= read


def test_every_mount_is_there() -> None:
    for path in (contract.CONTAINER_PRELOAD, contract.CONTAINER_LIMITS, contract.CONTAINER_LEDGER):
        assert f"| `{path}` |" in REFERENCE
    assert f"| `{contract.CONTAINER_LIBRARY_DIR}/` |" in REFERENCE


def test_the_examples_are_taken(tmp_path: Path) -> None:
    settings, inventory = fences(ROOT / "docs" / "reference.md", "yaml")
    file = tmp_path / "node.yaml"
    file.write_text(settings)
    assert config.load({"config": str(file)}, {}).log_level == "debug"
    assert len(parse_inventory(inventory.encode(), "the example", 1 << 30).gpus) == 1
    (pod,) = map(yaml.safe_load, fences(ROOT / "README.md", "yaml"))
    first = next(yaml.safe_load_all((ROOT / "docs" / "examples" / "two-pods.yaml").read_text()))
    assert pod["spec"]["containers"] == first["spec"]["containers"], "README shows what the example file has"


# --- the rest --------------------------------------------------------------------------------------------------------


LEVELS = ("info", "warning", "error", "exception")


def calls(*names: str) -> Iterator[ast.Call]:
    """Calls of functions and methods of these names in the agent."""
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                if name in names:
                    yield node


def texts(nodes: Iterable[ast.AST]) -> set[str]:
    """The texts that are written out in NODES."""
    found = {one.value for node in nodes for one in ast.walk(node) if isinstance(one, ast.Constant)}
    return {one for one in found if isinstance(one, str)}


def test_log_events_are_those_of_the_agent() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    table = text.partition("| event in the log |")[2].partition("\n\n")[0]
    events = {
        event for row in table.splitlines()[2:] for event in re.findall(r"`([^`]+)`", row.split("|")[1])
    }
    assert len(events) > 15
    sources = "".join(path.read_text() for path in PYTHON)
    assert [event for event in events if f'"{event}"' not in sources] == []
    said = texts(call.args[0] for call in calls(*LEVELS, "level") if call.args)
    assert len(said) > 50
    assert sorted(said - events) == [], "said and not in the table"


def test_events_on_pods_are_those_of_the_table() -> None:
    used = {
        text
        for text in texts(calls("event", "_event", "_say", "_say_of", "_tell", "_report_annotation"))
        if is_reason(text)
    }
    pairs = {pair for path in (ROOT / "agent" / "roles").glob("*.py") for pair in kinds_and_reasons(path)}
    used |= {reason for _, reason in pairs}
    assert used == {row.name for row in REASONS}
    for row in REASONS:
        assert row.kind in ("Normal", "Warning")
    said = {
        (reason, kind)
        for call in calls("event", "_event", "_say", "_say_of", "_tell")
        for reason in filter(is_reason, texts(call.args))
        for kind in texts(call.args) & {"Normal", "Warning"}
    } | {(reason, kind) for kind, reason in pairs}
    kinds = {row.name: row.kind for row in REASONS}
    assert {(reason, kind) for reason, kind in said if kinds[reason] != kind} == set()


def is_reason(text: str) -> bool:
    """Whether TEXT is CamelCase with at least two capitals; "Normal" and "Warning" have one."""
    return re.fullmatch(r"[A-Z][A-Za-z]*[A-Z][A-Za-z]*", text) is not None


def kinds_and_reasons(path: Path) -> set[tuple[str, str]]:
    """The tuples ("Normal" or "Warning", reason) that are written out in PATH."""
    tuples = [one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Tuple)]
    found = {tuple(part.value for part in one.elts if isinstance(part, ast.Constant)) for one in tuples}
    return {
        pair for pair in found if len(pair) == 2 and pair[0] in ("Normal", "Warning") and is_reason(pair[1])
    }


def test_what_limits_says_of_the_hooks_is_so() -> None:
    hooks = "".join(path.read_text() for path in (ROOT / "native" / "hooks" / "cuda").glob("*.def"))
    hooked = set(re.findall(r"HOOK\(\w+, (\w+)", hooks))
    holds, not_yet = (ROOT / "docs" / "limits.md").read_text().partition("## Not yet")[::2]
    claimed = set(re.findall(r"`(cu[A-Z]\w+)`", holds))
    missing = {n.removesuffix("…") for n in re.findall(r"`(cu[A-Z][\w…]+)`", not_yet)} - claimed
    assert claimed
    assert claimed <= hooked, "promised and not hooked"
    assert {name for name in hooked if name.startswith(tuple(missing))} == set(), "hooked: no longer missing"


def test_the_changelog_has_the_usual_sections() -> None:
    """That the version agrees with it: tests/unit/release/test_versions.py."""
    text = (ROOT / "CHANGELOG.md").read_text()
    kinds = set(re.findall(r"(?m)^### (\w+)$", text))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "adr"
    pages = sorted(folder.glob("[0-9]*.md"))
    numbers = [page.name[:4] for page in pages]
    assert len(set(numbers)) == len(numbers), "a number stands for one decision"
    index = (folder / "README.md").read_text()
    for page in pages:
        number, _, title = page.read_text().splitlines()[0].removeprefix("# ").partition(" ")
        assert f"| [{number}]({page.name}) | {title} |" in index


def test_the_licence_is_the_one_that_is_declared() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()
