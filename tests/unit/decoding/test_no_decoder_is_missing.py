# SPDX-License-Identifier: Apache-2.0
"""Every function of the source that decodes what others write has a row in the table, or a reason for having none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.decoding.decoders import DECODERS, EXEMPT

ROOT = Path(__file__).parents[3]
READERS = {
    "read_json", "read_document", "json.load", "json.loads", "orjson.loads", "yaml.safe_load", "yaml.compose",
}  # fmt: skip
NAMES = re.compile(
    r"_?(parse|decode|unpack|read_review|stored|load|of_bytes)(?![a-z])|_?(parsed|decoded|unpacked|loaded)$"
)
NO_DECODERS = re.compile(
    r"agent\.cli\..*|gigaslice\.runtime\.setting.*|gigaslice\.roles\.webhook\.server:.*|agent\.persistence\.lock:.*|.*:WebhookCertificates\..*|gigaslice\.roles\.dataset_node\.(unpack|node_io"
    r"|store\.store|sources\.checked_connects):.*|.*:(unready|unreadable|_unreadable)"
)
"""Commands and settings, which the operator gives; the webhook's server, which hands what it reads to `read_review`;
names that only sound like it."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(
        one for top in ("gigaslice", "gigaslice_cli", "agent") for one in (ROOT / top).rglob("*.py")
    ):
        if "pb" not in path.parts:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name, ast.parse(path.read_text())


def functions(node: ast.AST, within: str = "") -> Iterator[tuple[str, ast.AST]]:
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = within + one.name
            if not isinstance(one, ast.ClassDef):
                yield name, one
            yield from functions(one, f"{name}.")


def reads(function: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Call)
        and (ast.unparse(one.func) in READERS or ast.unparse(one.func).endswith(".FromString"))
        for one in ast.walk(function)
    )


def decoding() -> Iterator[str]:
    """Functions that read a text of others or are named like decoders; modules that look at fields of documents."""
    for module, tree in modules():
        for name, function in functions(tree):
            short = name.rpartition(".")[2]
            if NAMES.match(short) or reads(function):
                yield f"{module}:{name}"
        imported = (one.module for one in ast.walk(tree) if isinstance(one, ast.ImportFrom))
        if "gigaslice.core.kube.fields" in imported:
            yield module


def test_every_decoder_has_a_row_or_a_reason():
    covered = {one for decoder in DECODERS for one in decoder.covers}
    found = {one for one in decoding() if not NO_DECODERS.fullmatch(one)}
    assert found - covered - set(EXEMPT) == set(), "write a row in decoders.py, or a reason in EXEMPT"


def test_every_name_in_the_table_is_there():
    there = {
        one
        for module, tree in modules()
        for one in (module, *(f"{module}:{name}" for name, _ in functions(tree)))
    }
    named = {*EXEMPT, *(one for decoder in DECODERS for one in decoder.covers)}
    assert named - there == set()


def test_every_parser_of_an_informer_has_a_row():
    parsers = {
        re.sub(r"^lambda document: |\(document.*$|^self\.", "", ast.unparse(call.args[2]))
        for _, tree in modules()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Informer"
    }
    assert len(parsers) >= 8
    covered = {one.rpartition(":")[2].rpartition(".")[2] for decoder in DECODERS for one in decoder.covers}
    assert {one.rpartition(".")[2] for one in parsers} <= covered


def test_every_role_has_rows():
    assert {role for decoder in DECODERS for role in decoder.roles} == {
        "node", "scheduler", "controller", "dataset", "commands", "driver-limits",
    }  # fmt: skip
