# SPDX-License-Identifier: Apache-2.0
"""The sentences that code can print, read out of it: every text of a module in which two words stand, with … for what
is filled in. So a new sentence cannot be left out of the page that lists them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

_NO_SENTENCES = {
    "not of class", "not allowed", "offered as", "in use", "more node", "whole GPU", "named GPU", "exceeded quota",
    "GPU… …", "asked for", "reason=FailedCreate", "application/merge-patch+json", "application/apply-patch+yaml",
    "[0-9A-Za-z._-]+|[0-9A-Fa-f:.]+(%[0-9A-Za-z._-]+)?", r"\A(GPU|MIG)-[0-9A-Za-z][-0-9A-Za-z]*\Z",
}  # fmt: skip
"""Texts that are compared with, or counted."""


def sentences_of(*paths: str, functions: tuple[str, ...] = ()) -> list[str]:
    """The sentences of modules, each once, in their order; of some FUNCTIONS alone where they are named."""
    found: dict[str, None] = {}
    for path in paths:
        tree: ast.AST = ast.parse((ROOT / path).read_text())
        if functions:
            body = [
                node
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in functions
            ]
            assert len(body) == len(functions), functions
            tree = ast.Module(list[ast.stmt](body), [])
        found |= dict.fromkeys(text for text in map(_plain, _texts(tree)) if _is_sentence(text))
    return list(found)


def _texts(tree: ast.AST) -> list[str]:
    """In the order of the code; of nested ones the outer."""
    skipped = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    skipped |= {
        id(part.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.Expr)
    }
    texts: list[tuple[int, int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in ast.walk(node)} - {id(node)}
            parts = (str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
            if id(node) not in skipped:
                texts.append((node.lineno, node.col_offset, "".join(parts)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            texts.append((node.lineno, node.col_offset, node.value))
    return [text for _, _, text in sorted(texts)]


def _plain(text: str) -> str:
    return re.sub("…{2,}", "…", " ".join(text.split()))


def _is_sentence(text: str) -> bool:
    return len(re.findall(r"[A-Za-z][\w./'-]*", text)) > 1 and text not in _NO_SENTENCES
