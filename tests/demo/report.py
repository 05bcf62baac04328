# SPDX-License-Identifier: Apache-2.0
"""What the demo prints, and the count of claims that held and that did not."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gigaslice.runtime.progress import StepProgress
from tests.steps import step

GIB = 1 << 30


class Report:
    """Prints as it goes; `failed` holds the claims that did not hold."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(quiet=quiet, highlight=False, soft_wrap=True)
        self.started = time.monotonic()
        self.passed = 0
        self.failed: list[str] = []
        self._progress: StepProgress | None = None

    def close(self) -> None:
        """Ends the step that goes on; whatever is printed next does, too."""
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None

    def title(self, text: str) -> None:
        self.close()
        self.console.print(f"\n[bold]{text}[/bold]")

    def step(self, text: str) -> None:
        """A line before something that takes its time, and for how long it goes on where that is more than a moment."""
        self.told(text)
        self._progress = step(text, quiet=self.console.quiet)
        self._progress.__enter__()

    def told(self, text: str) -> None:
        """A line on what has happened, with its time."""
        self.close()
        self.console.print(f"[dim]{time.monotonic() - self.started:5.1f} s[/dim]  {text}")

    def note(self, text: str) -> None:
        self.close()
        self.console.print(f"         [yellow]{text}[/yellow]")

    def claim(self, text: str, held: bool, seen: str = "") -> bool:
        """One checked statement; SEEN is what was found, printed either way."""
        self.close()
        self.passed += held
        if not held:
            self.failed.append(f"{text} (seen: {seen or 'the opposite'})")
        word = "[green]PASS[/green]" if held else "[bold red]FAIL[/bold red]"
        detail = f"  [dim]{seen}[/dim]" if seen else ""
        self.console.print(f"         {word}  {text}{detail}")
        return held

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """COLUMNS that begin with ">" are numbers and stand on the right."""
        self.close()
        table = Table(
            title=title, title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD
        )
        for name in columns:
            table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
        for row in rows:
            table.add_row(*(str(cell) for cell in row))
        self.console.print()
        self.console.print(table)

    def block(self, title: str, text: str) -> None:
        """Output of another program, as it is."""
        self.close()
        self.console.print(f"\n[bold]{title}[/bold]")
        self.console.print(text.rstrip(), markup=False)
