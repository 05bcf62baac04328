# SPDX-License-Identifier: Apache-2.0
"""Every command of ours on the pages is run from a wheel by `make test-dist`, or it is said why not."""

from tests.packaging.page_commands import ELSEWHERE, commands, commands_of


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


def test_the_unit_of_systemd_and_the_rewriting_of_manifests_are_run():
    run = {command.text.split()[0] for command in commands() if not command.reason}
    assert any(program.startswith("ExecStart=") for program in run)
    assert "gigaslice rewrite trainer.yaml" in {command.text for command in commands() if not command.reason}


def test_every_reason_is_of_a_command_as_it_stands():
    texts = {command.text for command in commands()}
    assert set(ELSEWHERE) - texts == set()


def test_what_needs_a_cluster_is_named_and_nothing_else_is_left_out():
    """A new command is run by `make test-dist`, and fails there, until somebody says why it cannot be."""
    programs = {command.text.split()[0] for command in commands() if not command.reason}
    assert not programs & {"kubectl", "helm", "docker", "podman", "systemctl"}, "add them to elsewhere.yaml"


PAGE = """# A page

```sh
vcuda ps   # who has what
vcuda run --memory 8GiB \\
  -- ./eval
```

* In a list:

  ```console
  $ gigaslice status
  vcuda is written here by the command
  ```

```yaml
command: vcuda ps
```

    $ vcuda doctor
"""


def test_blocks_in_lists_and_of_sessions_are_read():
    assert list(commands_of(PAGE)) == [
        "vcuda ps", "vcuda run --memory 8GiB -- ./eval", "gigaslice status", "vcuda doctor",
    ]  # fmt: skip
