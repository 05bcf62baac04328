# SPDX-License-Identifier: Apache-2.0
"""Every command of ours on the pages is run from a wheel by `make test-dist`, or it is said why not."""

from tests.packaging.page_commands import ELSEWHERE, commands


def test_there_are_commands():
    found = list(commands())
    assert len(found) > 30
    assert {"README.md", "docs/workstation.md", "docs/datasets.md"} <= {command.page for command in found}
    assert any(
        command.text == "build/venv/bin/vcuda run --memory 8GiB -- python3 train.py" for command in found
    )


def test_most_of_the_workstations_commands_are_run():
    of_page = [command for command in commands() if command.page in {"README.md", "docs/workstation.md"}]
    assert sum(not command.reason for command in of_page) >= 12


def test_every_reason_has_a_command():
    texts = [command.text for command in commands()]
    for begin in ELSEWHERE:
        assert any(text.startswith(begin) for text in texts), begin
