# SPDX-License-Identifier: Apache-2.0
"""What is published was built by the release workflow, and by nobody else."""

from __future__ import annotations

from release.outside import outside_commands


def test_the_tag_is_all_that_publishes_and_an_index_gets_what_the_workflow_built():
    commands = outside_commands("1.2.3")
    place = "build/release/1.2.3/published"
    programs = [command.removeprefix(f"(cd {place} && ").split()[:2] for command in commands]
    assert programs == [
        ["git", "tag"], ["git", "push"], ["gh", "release"], ["sha256sum", "--check"], ["twine", "upload"],
    ]  # fmt: skip
    assert commands[2] == f"gh release download v1.2.3 --dir {place}"
    files = commands[-1].partition("#")[0].split()[2:]
    assert files == [f"{place}/*.whl", f"{place}/*.tar.gz"]
