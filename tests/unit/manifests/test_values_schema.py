# SPDX-License-Identifier: Apache-2.0
"""The schema of the chart's values is made from the settings, and takes exactly what the roles take."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.generated import old_files
from deploy.helm import schema
from gigaslice.runtime import setting_values
from gigaslice.runtime.settings import Setting, table
from tests.unit.docs.test_docs import PAGES, fences
from tests.unit.manifests.test_chart import CHART, helm

TEXTS = (
    "", "on", "off", "On", "OFF", "true", "False", "no", "YES", "auto", "nvml", "report", "evict", "dry-run", "env",
    "cdi", "0", "1", "5", "20", "90", "91", "100", "101", "999", "1000", "9999", "10000", "65536", "1073741824", "-1",
    "+1", "1e3", "0.5", "0.0005", "1.5", "100.0", "100.1", "2.50", "20%", "90%", "91%", "%", "8GiB", "8gib", "8G",
    "8Gi", "8GB", "8 GiB", "512MiB", "1.5GiB", "0GiB", "0.25TiB", "128TiB", "1.12345678GiB", "8B", "10s", "10", "500ms",
    "99ms", "2.5s", "10m", "1440m", "1441m", "86400s", "0s", "2h", "1d", "10 s", "100ms", "/", "/data", "/data/x.sock",
    "data", "./data", "~/x", ":9445", "127.0.0.1:9445", "[::1]:9445", "::1:9445", "9445", ":65535", ":65536",
    "localhost:80", ":http", "host:", "node-1", "node-1.example.com", "Node_1", "-node", "gigaslice", "a.b.",
    "gigaslice-controller", "_dmarc.example.com", "Gpus.Example.COM", "gpus.example.com,page.example.com",
    "gpus.example.com, page.example.com,", "http://a", "*.a.b", "gigaslice.io/vgpu-memory", "gigaslice.io/gpu",
    "example.com/gpu-memory,example.com/b", "vgpu-memory", "a/b/c", "requests.example.com/gpu", "kubernetes.io/gpu",
    "node.kubernetes.io/gpu", "gigaslice.io/", "/gpu", "Example.com/x", "gigaslice/gigaslice-scheduler", "H100=h100",
    "H100=h100,RTX 6000 Ada=rtx-6000", "H100", "H100=H100", "=h100", "rack=r7", "rack=r7,tier=gold", "rack=", "rack",
    "GPU-1-2-3-4-5/tier=gold", "GPU-1/tier=gold", "model=x", "GPU-1-2-3-4-5=8GiB", "GPU-1-2-3-4-5=8GiB,16GiB",
    "8", "7.5", "9999", "10000", "1048575", "1048576", "2000000",
    "8GiB,16GiB", "GPU-1-2-3-4-5=8GB", "team-a=500GiB", "team-a=500GiB,team-b=1TiB", "team-a=500GB", "=500GiB",
    "team-a", "datasets,shared", "Shared", "s3,gs,az,http,https", "s3,nfs://server/export,/data", "file", "file:///data",
    "file:data", "ftp", "nfs:", "lustre", "binpack", "spread", "best", "all", "bytes", "paper", "info", "debug", "json",
    "console", "wait", "exit", "tree", "refuse", "warn", "gaia", "best-effort", "max-sum",
)  # fmt: skip
"""Right and wrong texts of every kind that a setting has; each is tried on each."""

WORDS = ("dra", "device-plugin")
"""Right ones that are only tried as they are."""

LOOSER = {
    "parse_bytes": r"[0-9.]+t(i|ib)?|[0-9]+\.[0-9]+([kmgt](ib?)?)?",
    "_size_or_off": r"[0-9.]+t(i|ib)?|[0-9]+\.[0-9]+([kmgt](ib?)?)?",
    "_size_or_zero": r"[0-9.]+t(i|ib)?|[0-9]+\.[0-9]+([kmgt](ib?)?)?",
    "_lending": r"[0-9.]+t(i|ib)?|(.*=)?[0-9]+\.[0-9]+([kmgt](ib?)?)?|.*,.*",
    "_quotas": r".*=[0-9]+\.[0-9]+([kmgt](ib?)?)?",
    "_labels": "model=.*",
    "seconds": r"[0-9.]+(s|m|)",
}
"""What a schema takes that the parser refuses: what is beyond the largest value, is no whole number of bytes, is there
twice, or is a GPU's own."""

NUMBERS = (
    True,
    False,
    -1,
    0,
    1,
    5,
    90,
    91,
    999,
    1000,
    9999,
    10000,
    (1 << 20) - 1,
    1 << 20,
    1 << 30,
    (1 << 47) - 1,
    1 << 47,
    0.05,
    0.5,
    2.5,
    1e5,
)
WRONG_UNITS = ("8GB", "8 GiB", "0GiB", "10 s", "2h", "0s", "9445", ":65536", "maybe", "-1", "8GiBs")


def settings() -> Iterator[tuple[str, Setting]]:
    """The settings of every role with their path in the values."""
    for where, role in schema.ROLES.items():
        for one in table(role):
            yield f"{where}settings.{one.key}", one


SETTINGS = dict(settings())
every_setting = pytest.mark.parametrize("path", SETTINGS)


@functools.cache
def texts() -> tuple[str, ...]:
    """TEXTS, and what one change of a letter makes of them."""
    rng, found = Random(9), dict.fromkeys(TEXTS)
    letters = "".join(TEXTS) + " "
    for text in TEXTS:
        for _ in range(8):
            place = rng.randrange(len(text) + 1)
            found[text[:place] + rng.choice((rng.choice(letters), "")) + text[place + rng.randrange(2) :]] = (
                None
            )
    return (*found, *WORDS)


def takes(one: Setting, text: str) -> bool:
    try:
        one.parse(text)
    except ValueError:
        return False
    return True


def as_text(value: float) -> str:
    """What the chart makes of a number or a plain on and off of YAML (gigaslice.core.text)."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.0f}" if value == int(value) else f"{value}"


@functools.cache
def whole() -> Any:
    return jsonschema.Draft7Validator(yaml.safe_load(schema.FILE.read_text()))


def mistakes(values: dict[str, Any]) -> list[str]:
    """What the schema says of VALUES, with the path of each."""
    return [".".join([*map(str, one.absolute_path), one.message]) for one in whole().iter_errors(values)]


def nested(path: str, value: object) -> dict[str, Any]:
    """VALUE at its PATH."""
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def test_the_file_is_what_the_program_makes() -> None:
    assert old_files({schema.FILE: schema.made()}) == [], "make chart-schema"


@every_setting
def test_a_text_is_taken_where_the_role_takes_it(path: str) -> None:
    one = SETTINGS[path]
    check = jsonschema.Draft7Validator(schema.taken(one))
    looser = LOOSER.get(getattr(one.parse, "__name__", ""), "")
    may_be_off = one.metavar.endswith("|off") or one.parse is not setting_values.address
    taken = 0
    for text in texts():
        right, said = takes(one, text), check.is_valid(text)
        taken += right
        if said and not right and looser and re.fullmatch(f"(?i){looser}", text):
            continue
        if right and not may_be_off and setting_values.is_off(text):
            right = False  # the role refuses it later
        assert said == right, (path, text)
    assert taken


@every_setting
def test_a_number_is_taken_where_the_role_takes_what_becomes_of_it(path: str) -> None:
    one = SETTINGS[path]
    check = jsonschema.Draft7Validator(schema.taken(one))
    for value in NUMBERS:
        if check.is_valid(value):
            assert takes(one, as_text(value)), (path, value)
    named = isinstance(one.parse, setting_values.WordChoice) or one.parse is setting_values.on_off
    for word, value in (("off", False), ("on", True)):
        if named and takes(one, word):
            assert check.is_valid(value), f"{path}: YAML makes {value} of a plain {word}"


@every_setting
def test_a_default_and_a_variable_are_taken(path: str) -> None:
    one = SETTINGS[path]
    assert mistakes(nested(path, one.default)) == []
    if "enum" not in schema.taken(one) and one.parse is not setting_values.on_off:
        assert mistakes(nested(path, "$(POD_IP):9445")) == []
        assert bool(mistakes(nested(path, "$POD IP"))) != takes(one, "$POD IP")


def test_helm_takes_every_default_at_once(tmp_path: Path) -> None:
    elsewhere = {
        "stateDir",
        "ledgerDir",
        "kubeletDir",
        "podResources",
        "nodeName",
        "runDir",
        "kubeletRoot",
        "cdiDir",
    }
    elsewhere |= {"driverLimits", "driverLimitsMargin", "driverLimitsExempt", "driverLimitsSocket"}
    values: dict[str, Any] = {"cluster": {"enabled": True}, "dataset": {"enabled": True}}
    for where, role in schema.ROLES.items():
        below = values.setdefault(where.rstrip("."), {}) if where else values
        own = {"api"} if not where else set()  # of the agents: node.api
        below["settings"] = {one.key: one.default for one in table(role) if one.key not in elsewhere | own}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    done = helm("--values", str(tmp_path / "values.yaml"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("where", schema.ROLES)
def test_helm_refuses_a_key_that_the_role_does_not_have(where: str) -> None:
    done = helm("--set", f"{where}settings.slcie=2GiB")
    assert done.returncode != 0
    assert f"{where}settings: Additional property slcie is not allowed" in done.stderr


def test_helm_refuses_wrong_units_of_every_role(tmp_path: Path) -> None:
    wrong = {
        path: next(text for text in WRONG_UNITS if not takes(one, text) and "$" not in text)
        for path, one in SETTINGS.items()
        if any(not takes(one, text) for text in WRONG_UNITS)
    }
    assert len(wrong) > 80
    values: dict[str, Any] = {}
    for path, text in wrong.items():
        *above, key = path.split(".")
        below = values
        for name in above:
            below = below.setdefault(name, {})
        below[key] = text
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    done = helm("--values", str(tmp_path / "values.yaml"))
    assert done.returncode != 0
    assert [path for path in wrong if f"- {path}: " not in done.stderr] == []


@pytest.mark.parametrize(
    "mistake",
    [
        "settings.slice=8GB", "settings.pollInterval=2h", "settings.metricsAddress=9445", "settings.bindCpus=maybe",
        "settings.overuse=kill", "settings.wholeGpus=true", "settings.hostMemory=8GB", "settings.resource=gpu",
        "dataset.settings.quotas=team-a=5GB", "dataset.settings.keepFree=95%", "dataset.settings.allow=gopher",
        "controller.settings.pageHosts=http://gpus.example.com", "controller.settings.writesPerSecond=0",
        "scheduler.settings.listenAddress=off", "scheduler.settings.datasetWeight=101", "extraArgs={--slcie=2GiB}",
        "controller.extraArgs={--page-adress=off}", "dataset.extraArgs={-x}", "extraEnv[0].name=GIGASLICE_SLCIE",
        "extraEnv[0].vaule=1", "extraEnv[0].value=1", "maxSurge=many", "dataset.maxUnavailable=110%",
        "scheduler.kubeScheduler.image=x", "admission.mod=none", "serviceAccount.annotations.a=1", "nodeSelector.a=1",
    ],
)  # fmt: skip
def test_helm_refuses(mistake: str) -> None:
    done = helm("--set", mistake)
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr
    assert f"- {re.split(r'[=[]', mistake)[0].rpartition('.')[0]}" in done.stderr, "which value it is"


@pytest.mark.parametrize(
    "right",
    [
        "settings.slice=1.5GiB", "settings.slice=1073741824", "settings.pollInterval=2.5", "settings.rdmaShare=4",
        "settings.metricsAddress=$(POD_IP):9445", "settings.wholeGpus=false", "settings.bindCpus=true",
        "extraArgs={--overuse,evict,--config=/c}", "extraEnv[0].name=GIGASLICE_CONFIG", "extraEnv[0].name=TZ",
        "scheduler.settings.datasetWeight=0.25", "dataset.settings.keepFree=25", "maxSurge=1", "maxSurge=25%",
        "podLabels.any=x", "resources.limits.nvidia\\.com/gpu=1", "tolerations[0].key=x", "global.anything=1",
        "admission.objectSelector.matchLabels.a=b", "scheduler.kubeScheduler.extraArgs={--v=4}",
    ],
)  # fmt: skip
def test_helm_takes(right: str) -> None:
    done = helm("--set", right)
    assert done.returncode == 0, done.stderr


def test_objects_are_closed_but_for_what_kubernetes_defines() -> None:
    """A value that has values below it takes no others, unless Kubernetes or Helm says what it takes."""
    free = {"affinity", "objectSelector", "annotations", "from", "labels", "global", *schema.ANYWHERE}
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    seen = 0
    for path in schema.paths(defaults):
        value: Any = defaults
        for key in path.split("."):
            value = value[key]
        if isinstance(value, dict) and not free & set(path.split(".")):
            found = mistakes(nested(f"{path}.noSuchKey", "x"))
            assert any("noSuchKey" in one for one in found), path
            seen += 1
    assert seen > 10


def test_what_the_pages_set_is_taken() -> None:
    """Values in commands and in files of values."""
    seen = 0
    for page in PAGES:
        text = page.read_text()
        for path, value in re.findall(r"--set(?:-string)? ([\w.]+)=([^\s,`'\")]+)", text):
            assert mistakes(nested(path, yaml.safe_load(value))) == [], (page.name, path)
            seen += 1
        for path, value in re.findall(r"`((?:\w+\.)*settings\.\w+)[=:] ?([^`\s]+)`", text):
            assert mistakes(nested(path, yaml.safe_load(value))) == [], (page.name, path)
            seen += 1
        for block in fences(page, "yaml"):
            values = [one for one in yaml.safe_load_all(block) if isinstance(one, dict) and "kind" not in one]
            for value in values:
                if value and set(value) <= set(whole().schema["properties"]):
                    assert mistakes(value) == [], page.name
                    seen += 1
    assert seen > 5


def test_a_setting_whose_parser_is_not_known_stops_the_program() -> None:
    one = next(table(schema.config.Config).__iter__())
    with pytest.raises(KeyError):
        schema.taken(Setting(one.attribute, one.flag, "NAME", lambda text: text, "", ""))


def test_the_program_says_where_its_tables_are_old(tmp_path: Path) -> None:
    text = (CHART / "values.yaml").read_text()
    (tmp_path / "values.yaml").write_text(text.replace("\nstateDir:", "\nstateDirectory:"))
    with pytest.raises(ValueError, match=r"values\.yaml has no stateDir"):
        schema.made(tmp_path)
    (tmp_path / "values.yaml").write_text(text + "\nnew: {}\n")
    with pytest.raises(ValueError, match=r"say in VALUES of schema\.py"):
        schema.made(tmp_path)
    (tmp_path / "values.yaml").write_text(text + "\nnew: {switch: true, share: 100, name: x, names: []}\n")
    assert '"share"' in schema.made(tmp_path)
