"""The controller's metrics as readers take them."""

from gigaslice.controller.metrics import METRICS, Readings, exposition


def test_labels_of_others_are_one_line_for_every_reader():
    """prometheus_client escapes LF alone; readers in the manner of str.splitlines end a line at CR and others too."""
    name = next(name for name, (_, labels, _) in METRICS.items() if len(labels) == 1)
    readings = Readings()
    for end in ("\r", "\n", "\x85", "\u2028", "\x00", "\u202e"):
        readings.add(name, 1, f"a{end}b")
    text = exposition(readings)().decode()
    assert text.split("\n") == [*text.splitlines(), ""]
    assert all(line.isprintable() for line in text.splitlines())
