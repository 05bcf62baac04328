# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from gigaslice.runtime import logs


@pytest.fixture(autouse=True)
def _restored():
    import structlog

    yield
    structlog.reset_defaults()


def test_json_is_one_object_per_line_on_stderr(capsys):
    logs.set_up("info", "json")
    log = logs.get_logger("plugin")
    log.info("allocated", slices=8)
    log.debug("not shown")
    out, err = capsys.readouterr()
    event = json.loads(err)
    assert out == ""
    assert (event["event"], event["part"], event["slices"], event["level"]) == (
        "allocated",
        "plugin",
        8,
        "info",
    )
    assert event["timestamp"].endswith("Z")


def test_console_is_a_readable_line(capsys):
    logs.set_up("debug", "console")
    logs.get_logger("plugin").debug("allocated", slices=8)
    line = capsys.readouterr().err
    assert "allocated" in line
    assert "slices=8" in line


def test_an_exception_becomes_a_field(capsys):
    logs.set_up("info", "json")
    try:
        raise KeyError("x")
    except KeyError:
        logs.get_logger("plugin").exception("preferred allocation failed")
    found = json.loads(capsys.readouterr().err)["exception"]
    assert (found["type"], found["message"]) == ("KeyError", "'x'")
    assert "test_an_exception_becomes_a_field" in found["stacktrace"]


def test_credentials_are_masked(capsys):
    logs.set_up("info", "json")
    logs.get_logger("x").info(
        "called", Authorization="Bearer abc", bearer_token="abc", device_ids=["GPU-1/0"]
    )
    event = json.loads(capsys.readouterr().err)
    assert "abc" not in json.dumps(event)
    assert event["device_ids"] == ["GPU-1/0"]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), BrokenPipeError(), ValueError("closed")]
)
def test_a_full_or_closed_standard_error_is_no_error(monkeypatch, error):
    class Failing:
        written = 0

        def write(self, text):
            Failing.written += 1
            raise error

        def flush(self):
            raise error

        def isatty(self):
            return False

    logs.set_up("info", "json")
    monkeypatch.setattr("sys.stderr", Failing())
    logs.get_logger("x").info("not read")
    assert Failing.written


def test_what_a_program_does_in_a_loop_does_not_fill_the_log(capsys):
    logs.set_up("info", "json")
    log = logs.get_logger("health")
    for _ in range(5000):
        log.info("xid", gpu="GPU-1", xid=31)
    log.info("xid", gpu="GPU-1", xid=79)
    log.info("xid", gpu="GPU-2", xid=31)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == 12
    assert {(line["gpu"], line["xid"]) for line in lines} == {("GPU-1", 31), ("GPU-1", 79), ("GPU-2", 31)}


@pytest.mark.parametrize("style", ["json", "console"])
def test_text_of_tenants_is_one_line_without_control_characters(style, capsys):
    logs.set_up("info", style)
    nasty = "\x1b[2J\x1b[31mgpus\u202e=\n{}"
    logs.get_logger("x").warning("refused", detail=nasty, more=[nasty], by={nasty: (nasty, 1)})
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "\u202e" not in err
    assert "\x1b[2J" not in err and "\x1b[31mgpus" not in err
