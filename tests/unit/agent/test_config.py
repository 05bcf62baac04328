# SPDX-License-Identifier: Apache-2.0
from dataclasses import fields as dataclass_fields
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent import config
from gigaslice.core.errors import ConfigError
from gigaslice.core.model import AnnotationRights
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.scheduler.settings import SchedulerSettings
from gigaslice.runtime import settings
from gigaslice.runtime.settings import ENV_PREFIX


def load(flags=None, environ=None, **more):
    return config.load(flags or {}, environ or {}, **more)


def mistakes(flags=None, environ=None, **more):
    with pytest.raises(ConfigError) as caught:
        load(flags, environ, **more)
    return caught.value.mistakes


def test_defaults_are_a_configuration():
    loaded = load()
    assert loaded.state_dir == Path("/var/lib/gigaslice")
    assert loaded.slice_bytes == 1 << 30
    assert loaded.inventory == "nvml"
    assert loaded.socket_name == "gigaslice.io_vgpu-memory.sock"
    assert loaded.warnings == ()


def test_every_field_is_a_setting_with_a_flag_of_its_own():
    named = {field.attribute for field in config.SETTINGS}
    assert named | {"warnings", "defaulted", "kubernetes_service", "kubeconfig_variable"} == {
        field.name for field in dataclass_fields(config.Config)
    }
    assert len({field.flag for field in config.SETTINGS}) == len(config.SETTINGS)


def test_a_configuration_without_arguments_has_the_defaults():
    assert config.Config() == load()


def test_flag_beats_environment_beats_file_beats_default(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("slice: 2GiB\npollInterval: 3\nlogLevel: error\n")
    flags, environ = (
        {"config": str(path), "slice": "4GiB"},
        {"GIGASLICE_SLICE": "3GiB", "GIGASLICE_POLL_INTERVAL": "7s"},
    )
    loaded = load(flags, environ)
    assert (loaded.slice_bytes, loaded.poll_interval, loaded.log_level) == (4 << 30, 7.0, "error")
    assert load({"config": str(path)}, environ).slice_bytes == 3 << 30
    assert load({"config": str(path)}).slice_bytes == 2 << 30
    assert load().slice_bytes == 1 << 30


def test_the_file_can_be_named_in_the_environment(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("resource: example.com/memory\n")
    assert load({}, {"GIGASLICE_CONFIG": str(path)}).resource == "example.com/memory"


def test_an_empty_file_changes_nothing(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("# nothing\n")
    assert load({"config": str(path)}) == load()


def test_all_mistakes_of_all_sources_come_at_once(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("slcie: 1GiB\nlogFormat: pretty\nplacement: [gaia]\n")
    lines = mistakes(
        {"config": str(path), "slice": "8 apples"},
        {"GIGASLICE_KUBELET_DIR": "relative"},
        mistakes=("unknown argument '--foo'",),
    )
    text = "\n".join(lines)
    assert len(lines) == 6
    for part in ('unknown key "slcie"; did you mean "slice"?', "--slice", "8 apples", "GIGASLICE_KUBELET_DIR",
                 "placement must be a text", "logFormat", "unknown argument '--foo'"):  # fmt: skip
        assert part in text
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("slice", "0"), ("slice", "-1GiB"), ("slice", ""), ("state-dir", "var/lib"), ("state-dir", "/a\0b"),
        ("state-dir", ""),
        ("resource", "memory"), ("resource", "kubernetes.io/x"), ("resource", "a.kubernetes.io/x"),
        ("resource", "A.b/x"),
        ("resource", "a.b/-x"), ("resource", "a.b/" + "x" * 64), ("resource", "requests.a/x"), ("inventory", ""),
        ("poll-interval", "0"), ("poll-interval", "-1"), ("poll-interval", "ten"), ("poll-interval", "1e9"),
        ("poll-interval", "nan"),
        ("log-level", "LOUD"), ("log-format", ""), ("placement", "tetris"), ("visible-devices", "both"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_its_flag(flag, value):
    (line,) = mistakes({flag: value})
    assert line.startswith(f"--{flag} ")


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10), ("500ms", 0.5), ("2m", 120), ("1.5", 1.5)])
def test_times(text, seconds):
    assert load({"poll-interval": text}).poll_interval == seconds


@pytest.mark.parametrize(
    "content", [b"a: [", b"\xff\xfe\x00", b"- a\n- b\n", b"just text", b"a: &x [*x]\n", b"\0"]
)
def test_a_file_that_is_no_configuration(tmp_path, content):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    assert all(str(path) in line for line in mistakes({"config": str(path)}))


def test_a_file_that_cannot_be_read(tmp_path):
    (line,) = mistakes({"config": str(tmp_path)})
    assert "name a readable YAML file" in line


def test_a_socket_path_that_is_too_long_is_seen_before_anything_starts():
    (line,) = mistakes({"kubelet-dir": "/" + "d" * 100})
    assert "107 are possible" in line


def test_further_resources_are_off_unless_named():
    assert (load().whole_gpus, load().rdma) == ("", "")
    loaded = load({"whole-gpus": "gigaslice.io/gpu", "rdma": "off", "rdma-share": "4"})
    assert (loaded.whole_gpus, loaded.rdma, loaded.rdma_share) == ("gigaslice.io/gpu", "", 4)


def test_every_resource_has_a_name_and_a_socket_of_its_own():
    (line,) = mistakes({"whole-gpus": "gigaslice.io/vgpu-memory"})
    assert line.startswith("--resource and --whole-gpus: both are gigaslice.io/vgpu-memory")
    (line,) = mistakes({"rdma": f"gigaslice.io/{'r' * 60}", "kubelet-dir": "/" + "d" * 50})
    assert line.startswith("--kubelet-dir and --rdma: the socket path")
    assert len(mistakes({"rdma-share": "0"})) == 1


def test_variables_that_nobody_reads_are_a_warning_and_service_links_are_not():
    environ = {
        "GIGASLICE_SLCIE": "1",
        "GIGASLICE_SERVICE_HOST": "10.0.0.1",
        "GIGASLICE_PORT_443_TCP_ADDR": "x",
        "HOME": "/",
    }
    (warning,) = load({}, environ).warnings
    assert "GIGASLICE_SLCIE" in warning


flag_names = st.sampled_from([field.flag for field in config.SETTINGS])


@given(st.dictionaries(flag_names, st.text(max_size=40)), st.dictionaries(flag_names, st.text(max_size=40)))
def test_any_text_is_a_configuration_or_lines_about_it(flags, environ):
    variables = {ENV_PREFIX + flag.upper().replace("-", "_"): text for flag, text in environ.items()}
    try:
        loaded = config.load(flags, variables)
    except ConfigError as error:
        assert error.mistakes
        assert all(line and "\n" not in line and line.isprintable() for line in error.mistakes)
    else:
        assert loaded.state_dir.is_absolute()
        assert 0 < loaded.slice_bytes <= 1 << 47


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
)


@given(documents)
def test_any_yaml_is_a_configuration_or_lines_about_it(tmp_path_factory, document):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    try:
        config.load({"config": str(path)}, {})
    except ConfigError as error:
        assert all(line and "\n" not in line for line in error.mistakes)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9445", (None, 9445)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9445", ("::1", 9445)),
        ("off", None),
    ],
)
def test_where_metrics_are_served(text, address):
    assert config.load({"metrics-address": text}, {}).metrics_address == address


@pytest.mark.parametrize("text", ["", "9445", ":", ":x", ":70000", "::1:9445", "http://x"])
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="metrics-address"):
        config.load({"metrics-address": text}, {})


def test_host_memory_is_lent_to_the_node_and_to_single_gpus():
    gpu = "GPU-6E1B5C1E-0000-4000-8000-000000000001"
    assert config.load({}, {}).host_memory == {}
    assert config.load({"host-memory": "8GiB"}, {}).host_memory == {"": 8 << 30}
    both = config.load({"host-memory": f"8GiB,{gpu}=4GiB"}, {}).host_memory
    assert both == {"": 8 << 30, "GPU-6e1b5c1e-0000-4000-8000-000000000001": 4 << 30}


@pytest.mark.parametrize("text", ["8GB", "0", "8GiB,4GiB", "1=8GiB", "GPU-1=8GiB", "8GiB,", "=8GiB"])
def test_host_memory_that_makes_no_sense_is_refused(text):
    with pytest.raises(ConfigError, match="--host-memory"):
        config.load({"host-memory": text}, {})


@pytest.mark.parametrize("text, meant", [
    ("on", "on"), ("off", "off"), ("On", "on"), ("OFF", "off"), ("yes", "on"), ("no", "off"), ("true", "on"),
    ("False", "off"), ('"on"', "on"), ("'off'", "off"),
])  # fmt: skip
def test_on_and_off_mean_that_in_a_file_too(tmp_path, text, meant):
    """YAML 1.1 has them as truth values, and so has Helm, which writes true and false for them."""
    path = tmp_path / "config.yaml"
    path.write_text(f"bindCpus: {text}\nevictOverLimit: {text}\n")
    loaded = load({"config": str(path)})
    assert (loaded.bind_cpus, loaded.evict_over_limit) == (meant, meant)
    plain = text.strip("\"'")
    assert load({"bind-cpus": plain}, {"GIGASLICE_EVICT_OVER_LIMIT": plain}).bind_cpus == meant


@pytest.mark.parametrize("text", ["off", "Off", "no", "false"])
def test_what_can_be_turned_off_can_be_so_in_a_file(tmp_path, text):
    path = tmp_path / "config.yaml"
    keys = [field.key for field in config.SETTINGS if field.metavar.endswith("|off")]
    assert set(keys) >= {"hostMemory", "bindCpus", "metricsAddress", "kubeApi", "wholeGpus", "rdma"}
    path.write_text("".join(f"{key}: {text}\n" for key in keys))
    loaded, meant = (
        load({"config": str(path)}),
        {field.flag: "off" for field in config.SETTINGS if field.key in keys},
    )
    assert loaded == load(meant)
    assert (loaded.host_memory, loaded.metrics_address, loaded.kube_api, loaded.rdma) == ({}, None, "off", "")


@pytest.mark.parametrize(
    "key", ["logFormat", "placement", "overuse", "visibleDevices", "withoutGpus", "slice"]
)
@pytest.mark.parametrize("text", ["on", "off", "true", "no"])
def test_a_truth_value_is_no_word_of_another_choice(tmp_path, key, text):
    path = tmp_path / "config.yaml"
    path.write_text(f"{key}: {text}\n")
    (line,) = mistakes({"config": str(path)})
    assert f'{key} "{text}"' in line


@pytest.mark.parametrize("line, attribute, value", [
    ("slice: 1073741824", "slice_bytes", 1 << 30), ("slice: '1073741824'", "slice_bytes", 1 << 30),
    ("slice: 8GiB", "slice_bytes", 8 << 30), ("slice: 010", "slice_bytes", 10 << 30),
    ("pollInterval: 90", "poll_interval", 90.0), ("pollInterval: 2.50", "poll_interval", 2.5),
    ("pollInterval: 0100", "poll_interval", 100.0), ("rdmaShare: '4'", "rdma_share", 4),
    ("nodeName: '0123'", "node_name", "0123"), ("nodeName: 0123", "node_name", "0123"),
    ("nodeName: 1e3", "node_name", "1e3"), ("nodeName: 2026-01-02", "node_name", "2026-01-02"),
    ("hostMemory: 8GiB", "host_memory", {"": 8 << 30}), ("metricsAddress: :9445", "metrics_address", (None, 9445)),
])  # fmt: skip
def test_a_value_is_the_text_that_stands_there(tmp_path, line, attribute, value):
    """Not what YAML 1.1 makes of it: an octal 010, a 1:30 of base 60, a date."""
    path = tmp_path / "config.yaml"
    path.write_text(line + "\n")
    assert getattr(load({"config": str(path)}), attribute) == value


@pytest.mark.parametrize("line", [
    "pollInterval: 1:30", "pollInterval: 0x10", "pollInterval: 1_000", "slice: 1:30", "slice: 1_000", "slice: 0x10",
    "slice: 1e9", "slice: .inf", "pollInterval: .nan", "rdmaShare: 010", "slice:", "slice: ~", "slice: null",
    "nodeName:", "nodeName: null", "rdma: ~", "slice: 1GiB\nslice: 2GiB", "slice: [1GiB]", "slice: {a: b}",
    "? [a]\n: b", "slice: *x",
])  # fmt: skip
def test_what_could_mean_two_things_is_refused_with_its_key(tmp_path, line):
    path = tmp_path / "config.yaml"
    path.write_text(line + "\n")
    found = mistakes({"config": str(path)})
    assert len(found) == 1 and str(path) in found[0] and "\n" not in found[0]


@pytest.mark.parametrize("port", ["", "x", "-1", "0", "65536", "²", "1" * 400])
def test_a_service_with_an_impossible_port_is_none(port):
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": port}
    assert load({}, environ).kubernetes_service == ""


@pytest.mark.parametrize("role", [config.Config, SchedulerSettings, ControllerConfig])
def test_annotations_are_refused_in_every_role_unless_it_is_told_that_they_were_checked(role):
    assert settings.load(role, {}, {}).annotation_rights is AnnotationRights.REFUSE
    told = settings.load(role, {}, {"GIGASLICE_ANNOTATION_RIGHTS": "checked"})
    assert told.annotation_rights is AnnotationRights.CHECKED
    with pytest.raises(ConfigError, match="must be one of refuse, checked"):
        settings.load(role, {"annotation-rights": "warn"}, {})


@pytest.mark.parametrize("role", [SchedulerSettings, ControllerConfig])
def test_what_a_role_is_told_reaches_what_it_judges_by(role):
    told = settings.load(role, {"annotation-rights": "checked"}, {})
    assert told.units.rights is AnnotationRights.CHECKED
