# SPDX-License-Identifier: Apache-2.0
"""Several kubeconfig files are one, as kubectl has it: the first file that has a name has all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gigaslice.core.errors import ConfigError
from gigaslice.kubeapi.access import find_access
from gigaslice.kubeapi.kubeconfig import KubeconfigFiles, kubeconfig_files, read_kubeconfig


def written(path: Path, **tables: Any) -> Path:
    """A file: clusters, users and contexts by name, and the current context."""
    path.parent.mkdir(exist_ok=True)
    document: dict[str, Any] = {
        table: [{"name": name, table[:-1]: values} for name, values in tables[table].items()]
        for table in ("clusters", "users", "contexts")
        if table in tables
    }
    if "current" in tables:
        document["current-context"] = tables["current"]
    path.write_text(yaml.safe_dump(document))
    return path


SERVER_A, SERVER_B = {"server": "https://a:6443"}, {"server": "https://b:6443"}
HERE, THERE = {"cluster": "k", "user": "u", "namespace": "here"}, {"cluster": "k", "namespace": "there"}


@pytest.mark.parametrize(
    "first, second, context, expected",
    [
        (  # what one file lacks another has
            {"clusters": {"k": SERVER_A}},
            {"contexts": {"c": HERE}, "users": {"u": {"token": "t"}}, "current": "c"},
            "", ("a", "t", "here"),
        ),
        (  # the first file that has a name has all of it: nothing of the second's user is mixed in
            {"clusters": {"k": SERVER_A}, "users": {"u": {}}, "contexts": {"c": HERE}, "current": "c"},
            {"clusters": {"k": SERVER_B}, "users": {"u": {"token": "t"}}, "contexts": {"c": THERE}},
            "", ("a", None, "here"),
        ),
        (  # the first current context counts, and may be of the second file
            {"current": "d"},
            {"clusters": {"k": SERVER_B}, "contexts": {"c": HERE, "d": THERE}, "current": "c"},
            "", ("b", None, "there"),
        ),
        (  # an empty one is none
            {"clusters": {"k": SERVER_A}, "users": {"u": {"token": "t"}}, "current": ""},
            {"contexts": {"c": HERE}, "current": "c"},
            "", ("a", "t", "here"),
        ),
        (  # a flag's context may be of any file
            {"clusters": {"k": SERVER_A}, "contexts": {"c": THERE}, "current": "c"},
            {"contexts": {"e": {"cluster": "l"}}, "clusters": {"l": SERVER_B}},
            "e", ("b", None, "default"),
        ),
    ],
)  # fmt: skip
def test_several_files_are_one(tmp_path, first, second, context, expected):
    one, two = written(tmp_path / "one", **first), written(tmp_path / "two", **second)
    files = kubeconfig_files(None, f"{one}:{tmp_path}/absent::{two}:{one}")
    assert files == KubeconfigFiles((one, two), "$KUBECONFIG")
    access, whence = find_access(None, "", variable=f"{one}:{two}", context=context)
    assert access is not None and whence == f"kubeconfig {one}:{two}"
    assert (access.host, access.token, read_kubeconfig(files).namespace(context)) == expected


def test_a_path_is_relative_to_the_file_that_has_it(tmp_path):
    one = written(tmp_path / "a" / "config", clusters={"k": {**SERVER_A, "certificate-authority": "ca.crt"}})
    user = {"client-certificate": "me.crt", "client-key": "/keys/me.key", "tokenFile": "../token"}
    two = written(tmp_path / "b" / "config", users={"u": user}, contexts={"c": HERE}, current="c")
    access, _ = find_access(None, "", variable=f"{one}:{two}")
    assert access is not None
    assert access.ca_file == tmp_path / "a" / "ca.crt"
    assert access.cert_file == tmp_path / "b" / "me.crt"
    assert access.key_file == Path("/keys/me.key")
    assert access.token_file == tmp_path / "b" / ".." / "token"


def test_who_names_the_files(tmp_path):
    usual = written(tmp_path / ".kube" / "config")
    other = written(tmp_path / "other")
    assert kubeconfig_files("/absent", str(other), tmp_path) == KubeconfigFiles((Path("/absent"),))
    assert kubeconfig_files("", str(other), tmp_path) == KubeconfigFiles((other,), "$KUBECONFIG")
    found = kubeconfig_files("", "", tmp_path)
    assert found is not None and found.paths == (usual,)
    assert kubeconfig_files("", "", None) is None, "a role takes nobody's"
    assert kubeconfig_files("", "/absent:", tmp_path) is None, "as for kubectl, the usual one does not count"


def test_a_mistake_names_its_file_and_no_secret(tmp_path):
    good = written(tmp_path / "good", contexts={"c": HERE}, current="c", clusters={"k": SERVER_A})
    bad = tmp_path / "bad"
    bad.write_text("users: [{token: s3cret")
    with pytest.raises(ConfigError, match="not YAML") as caught:
        read_kubeconfig(KubeconfigFiles((good, bad), "$KUBECONFIG"))
    assert str(caught.value).startswith(f'$KUBECONFIG "{bad}": ') and "s3cret" not in str(caught.value)
    with pytest.raises(ConfigError, match='users has no user named "u"') as caught:
        find_access(None, "", variable=str(good))
    assert str(caught.value).startswith(f'$KUBECONFIG "{good}": ')
    users = written(tmp_path / "users", users={"u": {"exec": {"env": "s3cret"}}})
    with pytest.raises(ConfigError, match="exec") as caught:
        find_access(None, "", variable=f"{good}:{users}")
    assert str(caught.value).startswith(f'$KUBECONFIG "{good}:{users}": ')
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(read_kubeconfig(KubeconfigFiles((users,))))
