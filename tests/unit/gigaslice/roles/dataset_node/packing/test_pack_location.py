# SPDX-License-Identifier: Apache-2.0
"""SRC and DST as a command names them, and whose credentials open them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gigaslice.core.dataset.errors import RequestError
from gigaslice.roles.dataset_node.packing.pack_location import RemoteLocation, locate

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "KEY",
    "AWS_SECRET_ACCESS_KEY": "SECRET",
    "AWS_SESSION_TOKEN": "SESSION",
    "AWS_REGION": "eu-1",
    "AWS_DEFAULT_REGION": "eu-2",
    "AWS_ENDPOINT_URL": "http://any:1",
    "AWS_ENDPOINT_URL_S3": "http://s3:1",
    "AZURE_STORAGE_ACCOUNT": "acct",
    "AZURE_STORAGE_KEY": "AZKEY",
    "AZURE_STORAGE_SAS_TOKEN": "SAS",
    "AZURE_CLIENT_ID": "ID",
    "AZURE_TENANT_ID": "TENANT",
    "AZURE_CLIENT_SECRET": "AZSECRET",
    "RCLONE_CONFIG_MINE_TYPE": "sftp",
    "UNRELATED": "x",
}


def remote(text: str, options: dict[str, str] | None = None, **more: object) -> RemoteLocation:
    found = locate(text, options or {}, None, ENVIRONMENT | more)
    assert isinstance(found, RemoteLocation)
    return found


@pytest.mark.parametrize("text", ["data", "/data/coco", "./s3:/x", "file:///data/coco"])
def test_a_path_is_a_directory(text: str) -> None:
    assert locate(text, {}, None, ENVIRONMENT) == Path(text.removeprefix("file://"))


def test_a_directory_has_no_options_and_no_credentials(tmp_path: Path) -> None:
    for options, credentials in (({"region": "x"}, None), ({}, tmp_path)):
        with pytest.raises(RequestError, match="no options and no credentials"):
            locate("/data", options, credentials, {})


@pytest.mark.parametrize("kind", ["nfs", "lustre", "beegfs", "cephfs"])
def test_what_a_kernel_mounts_is_to_be_mounted(kind: str) -> None:
    with pytest.raises(RequestError, match=rf"mount -t {kind}\), and name the directory"):
        remote(f"{kind}://server/export/path")


def test_the_environment_of_the_stores_own_tools(tmp_path: Path) -> None:
    s3 = remote("s3://bucket/x").credentials
    names = ("access_key", "secret_key", "session_token", "endpoint", "region")
    assert [s3.get(name) for name in names] == ["KEY", "SECRET", "SESSION", "http://s3:1", "eu-1"]
    az = remote("az://container/x").credentials
    names = ("account", "account_key", "sas_token", "client_id", "tenant_id", "client_secret")
    assert [az.get(name) for name in names] == ["acct", "AZKEY", "SAS", "ID", "TENANT", "AZSECRET"]
    (tmp_path / "key.json").write_text('{"type": "service_account"}\n')
    (tmp_path / "ca.pem").write_text("CA")
    gs = remote("gs://bucket/x", GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "key.json")).credentials
    assert gs.get("service_account") == '{"type": "service_account"}'
    assert remote("s3://bucket/x", AWS_CA_BUNDLE=str(tmp_path / "ca.pem")).credentials.get("ca") == "CA"
    assert dict(remote("rclone:mine:x").credentials.exact()) == {"RCLONE_CONFIG_MINE_TYPE": "sftp"}
    assert not remote("https://host/x").credentials


def test_an_option_outranks_the_environment() -> None:
    found = remote("s3://bucket/x", {"endpoint": "http://minio:9000"})
    assert found.credentials.get("endpoint") == "" and found.credentials.get("access_key") == "KEY"


def test_a_file_of_the_environment_that_is_not_there() -> None:
    with pytest.raises(RequestError, match="GOOGLE_APPLICATION_CREDENTIALS: /gone cannot be read"):
        remote("gs://bucket/x", GOOGLE_APPLICATION_CREDENTIALS="/gone")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A Secret as the kubelet mounts it."""
    (tmp_path / "secret/..2026").mkdir(parents=True)
    (tmp_path / "secret/..data").symlink_to("..2026")
    for name, value in (("accessKeyID", "MINE\n"), ("secretAccessKey", "HIDDEN")):
        (tmp_path / "secret/..2026" / name).write_text(value)
        (tmp_path / "secret" / name).symlink_to(f"..data/{name}")
    return tmp_path / "secret"


def test_a_directory_of_credentials(secret: Path) -> None:
    found = locate("s3://bucket/x", {}, secret, ENVIRONMENT)
    assert isinstance(found, RemoteLocation)
    assert (found.credentials.get("access_key"), found.credentials.get("secret_key")) == ("MINE", "HIDDEN")
    assert found.credentials.get("session_token") == found.credentials.get("region") == ""
    assert found.credentials.where == str(secret)
    assert "HIDDEN" not in repr(found) + str(found)


def test_directories_that_are_none_of_credentials(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "empty").mkdir()
    for where, says in ((tmp_path / "gone", "cannot be read"), (tmp_path / "empty", "no files")):
        with pytest.raises(RequestError, match=says):
            locate("s3://bucket/x", {}, where, {})
    (secret / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="binary is no text"):
        locate("s3://bucket/x", {}, secret, {})
    (secret / "binary").write_bytes(b"x" * (1 << 20))
    with pytest.raises(RequestError, match="larger than 1 MiB"):
        locate("s3://bucket/x", {}, secret, {})


def test_a_pipe_among_the_credentials_is_not_waited_for(secret: Path) -> None:
    os.mkfifo(secret / "pipe")
    locate("s3://bucket/x", {}, secret, {})


def test_a_destination_of_the_same_kind_is_in_the_same_store(secret: Path) -> None:
    options = {"endpoint": "http://minio:9000", "region": "eu", "anonymous": "true", "fetchers": "8"}
    source = locate("s3://raw/x", options, secret, {})
    same = locate("s3://packs/x", {}, None, ENVIRONMENT, like=source)
    assert isinstance(same, RemoteLocation) and isinstance(source, RemoteLocation)
    assert same.credentials is source.credentials
    assert dict(same.spec.options) == {"endpoint": "http://minio:9000", "region": "eu"}
    for other in (
        locate("s3://packs/x", {"region": "us"}, None, ENVIRONMENT, like=source),
        locate("az://packs/x", {}, None, ENVIRONMENT, like=source),
    ):
        assert isinstance(other, RemoteLocation)
        assert other.spec.option("endpoint") == "" and other.credentials.where == "the environment"
