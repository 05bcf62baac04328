# SPDX-License-Identifier: Apache-2.0
"""Manifests of other projects' pods, written for the tests."""

from __future__ import annotations

import json
from typing import Any

import yaml

from gigaslice.core.rewrite.gpu_request import RewriteSettings
from gigaslice.core.rewrite.manifest_text import ManifestRewrite, rewrite_text

SETTINGS = RewriteSettings()


def pod(*limits: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod whose containers "a", "b" and so on have these limits."""
    containers = [
        {"name": chr(ord("a") + number), "resources": {"limits": its}} for number, its in enumerate(limits)
    ]
    metadata = {"name": "p", **({"annotations": annotations} if annotations else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": containers, **spec},
    }


def rewritten(document: object, settings: RewriteSettings = SETTINGS) -> ManifestRewrite:
    """What becomes of a document."""
    return rewrite_text(json.dumps(document), settings)


def parts(
    document: object, settings: RewriteSettings = SETTINGS
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The limits of a rewritten pod's containers, and its annotations; nothing of it may be left to the author."""
    rewrite = rewritten(document, settings)
    assert not [note for note in rewrite.notes if note.left]
    result = yaml.safe_load(rewrite.text)
    limits = [container.get("resources", {}).get("limits", {}) for container in result["spec"]["containers"]]
    return limits, result["metadata"].get("annotations", {})


def left(document: object, settings: RewriteSettings = SETTINGS) -> str:
    """Why a document is left to its author, as one text; it must be as it was."""
    rewrite = rewritten(document, settings)
    assert json.loads(rewrite.text) == document
    notes = [note.text for note in rewrite.notes]
    assert notes and all(note.left for note in rewrite.notes)
    return "\n".join(notes)


def said(document: object, settings: RewriteSettings = SETTINGS) -> str:
    """What is said about a document that is rewritten, as one text."""
    rewrite = rewritten(document, settings)
    assert not any(note.left for note in rewrite.notes)
    return "\n".join(note.text for note in rewrite.notes)
