# SPDX-License-Identifier: Apache-2.0
"""The controller's metrics as readers take them."""

from gigaslice.roles.controller.metrics import METRICS
from gigaslice.runtime.metrics import Exposition, Values


def test_labels_of_others_are_one_line_for_every_reader():
    """prometheus_client escapes LF alone; readers in the manner of str.splitlines end a line at CR and others too."""
    name = next(row.name for row in METRICS if len(row.labels) == 1)
    values = Values(METRICS)
    for end in ("\r", "\n", "\x85", "\u2028", "\x00", "\u202e"):
        values.add(name, 1, f"a{end}b")
    text = Exposition(lambda: values).prepare()().decode()
    assert text.split("\n") == [*text.splitlines(), ""]
    assert all(line.isprintable() for line in text.splitlines())
