# SPDX-License-Identifier: Apache-2.0
"""A role needs no more than its table."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest

from gigaslice.core.errors import ConfigError
from gigaslice.runtime import setting_values as values
from gigaslice.runtime import settings
from gigaslice.runtime.settings import Settings, setting


@dataclass(frozen=True, slots=True)
class Role(Settings):
    resync_interval: float = setting("TIME", values.seconds, "30s", "how often everything is read again")
    share: int = setting("COUNT", values.count, "10", "100% of it", flag="share-count")
    note: str = "not a setting"

    def contradictions(self) -> list[str]:
        return (
            ["--share-count: too large for so short an interval"] if self.share > self.resync_interval else []
        )


def flags(*arguments: str) -> dict[str, str | None]:
    parser = argparse.ArgumentParser()
    settings.add_flags(parser, Role)
    return settings.flags_of(Role, parser.parse_args(arguments))


def test_a_table_names_its_settings_three_times_over():
    first, second = settings.table(Role)
    assert (first.flag, first.variable, first.key) == (
        "resync-interval", "GIGASLICE_RESYNC_INTERVAL", "resyncInterval"
    )  # fmt: skip
    assert (second.attribute, second.flag, second.key) == ("share", "share-count", "shareCount")


def test_values_come_from_flags_environment_file_and_defaults(tmp_path):
    path = tmp_path / "role.yaml"
    path.write_text("shareCount: 7\n")
    loaded = settings.load(Role, flags("--config", str(path)), {"GIGASLICE_RESYNC_INTERVAL": "2m"})
    assert (loaded.resync_interval, loaded.share, loaded.note) == (120.0, 7, "not a setting")
    assert settings.load(Role, flags("--share-count", "3"), {}) == Role(share=3)


def test_a_setting_of_another_role_is_a_warning_in_the_environment():
    (warning,) = settings.load(Role, {}, {"GIGASLICE_STATE_DIR": "/x"}).warnings
    assert "GIGASLICE_STATE_DIR" in warning


def test_contradictions_are_mistakes():
    with pytest.raises(ConfigError, match="too large for so short an interval"):
        settings.load(Role, {"share-count": "31"}, {})


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (values.choice("gaia", "spread"), "gaiaa", "must be one of gaia, spread; did you mean gaia?"),
        (values.choice("gaia", "spread"), "SPRAED", "must be one of gaia, spread; did you mean spread?"),
        (values.choice("gaia", "spread"), "x", "must be one of gaia, spread"),
        (values.auto_off, "atuo", "must be one of auto, off; did you mean auto?"),
        (values.on_off, "offf", "must be one of on, off; did you mean off?"),
    ],
)
def test_a_word_that_is_none_of_them_says_which_may_be_meant(parse, text, says):
    with pytest.raises(ValueError) as mistake:
        parse(text)
    assert str(mistake.value) == says
