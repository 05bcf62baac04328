"""Text of others, fit to be shown: one line without anything that a terminal, a log or an event would act on.

Annotations, names and messages of tenants and peers reach terminals through `kubectl describe`, `journalctl` and this
program's own commands. Whoever hands text on to one of these passes it through here: events (`kube.events`), log lines
(`telemetry.logs`), errors of calls (`kubelet.servicer`, `control.server`) and lines for users (`cli`).
"""

from __future__ import annotations

__all__ = ["plain"]


def plain(text: str) -> str:
    """TEXT in one line: white space as single blanks, everything else that does not print as its escape.

    That goes for escape sequences, other control characters, marks that turn the direction of writing, and halves of
    surrogate pairs, which no encoding takes.
    """
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)
