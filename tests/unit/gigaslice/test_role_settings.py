# SPDX-License-Identifier: Apache-2.0
"""What roles share has one meaning in all of them, and stands behind what is a role's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import Config
from gigaslice.role_settings import RoleSettings, load
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.roles.scheduler.settings import SchedulerSettings
from gigaslice.runtime.settings import table

ROLES = [Config, DatasetSettings, SchedulerSettings, ControllerConfig]
every_role = pytest.mark.parametrize("role", ROLES)


@every_role
def test_every_role_finds_the_api_server_of_its_pod(role: type[RoleSettings]) -> None:
    told = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert load(role, {}, told).kubernetes_service == "10.0.0.1:443"
    assert load(role, {}, {**told, "KUBERNETES_SERVICE_PORT": "0"}).kubernetes_service == ""


@every_role
def test_what_all_roles_have_stands_last_and_in_one_order(role: type[RoleSettings]) -> None:
    flags = [one.flag for one in table(role)]
    assert flags[-5:] == ["metrics-address", "metrics-token-file", "kubeconfig", "log-level", "log-format"]
    assert len(set(flags)) == len(flags)


def test_a_roles_own_default_takes_the_place_of_the_shared_one() -> None:
    assert [load(role, {}, {}).metrics_address for role in ROLES] == [
        (None, 9445), (None, 9446), None, (None, 9446)
    ]  # fmt: skip


@every_role
def test_every_role_has_kubectls_variable(role: type[RoleSettings]) -> None:
    assert load(role, {}, {}).kubeconfig_variable == ""
    loaded = load(role, {"kubeconfig": "/c"}, {"KUBECONFIG": "/a:/b"})
    assert (loaded.kubeconfig, loaded.kubeconfig_variable) == (Path("/c"), "/a:/b")
