import base64
import ssl

import pytest
import yaml

from agent.errors import ConfigError
from agent.kube.access import Access, find_access


def kubeconfig(tmp_path, server="https://10.0.0.1:6443/k8s/", cluster=None, user=None):
    path = tmp_path / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": server, **(cluster or {})}}],
                "users": [{"name": "u", "user": user or {}}],
            }
        )
    )
    return path


def mistakes(path):
    with pytest.raises(ConfigError) as caught:
        find_access(path, "")
    return str(caught.value)


def test_a_kubeconfig_is_read_with_paths_relative_to_it(tmp_path):
    user = {"tokenFile": "token", "client-key-data": base64.b64encode(b"key").decode()}
    access, whence = find_access(
        kubeconfig(tmp_path, cluster={"certificate-authority": "ca.crt"}, user=user), ""
    )
    assert (access.host, access.port, access.prefix, access.tls) == ("10.0.0.1", 6443, "/k8s", True)
    assert (access.ca_file, access.token_file) == (tmp_path / "ca.crt", tmp_path / "token")
    assert access.key_data == b"key"
    assert str(tmp_path) in whence
    assert "key" not in repr(access).replace("key_file", "")


def test_a_token_is_read_anew_each_time(tmp_path):
    access = Access("h", 1, token_file=tmp_path / "token")
    for token in ("one", "two"):
        (tmp_path / "token").write_text(token + "\n")
        assert access.authorization() == f"Bearer {token}"
    assert Access("h", 1).authorization() is None


@pytest.mark.parametrize("server, text", [
    ("ftp://x", "must look like https://"), ("https://", "must look like"), ("https://h:x", "is no URL"),
    ("", "must look like"),
])  # fmt: skip
def test_a_server_that_is_none(tmp_path, server, text):
    assert text in mistakes(kubeconfig(tmp_path, server))


@pytest.mark.parametrize("user, text", [
    ({"exec": {"command": "aws"}}, "not supported; use a token"),
    ({"username": "u", "password": "p"}, "not supported"),
    ({"client-certificate-data": "!!"}, "not base64"),
])  # fmt: skip
def test_credentials_that_cannot_be_used_are_said_so(tmp_path, user, text):
    assert text in mistakes(kubeconfig(tmp_path, user=user))


@pytest.mark.parametrize(
    "content", ["", "[]", "contexts: 3", "current-context: c\ncontexts: []", "{", "\x00"]
)
def test_a_file_that_is_no_kubeconfig(tmp_path, content):
    path = tmp_path / "k"
    path.write_text(content)
    assert "--kubeconfig" in mistakes(path)
    assert "\n" not in mistakes(path)


def test_a_file_that_is_not_there(tmp_path):
    assert "name a readable" in mistakes(tmp_path / "none")


def test_in_a_pod_the_service_account_is_used(tmp_path):
    (tmp_path / "token").write_text("t")
    access, _ = find_access(None, "[fd00::1]:443", tmp_path)
    assert (access.host, access.port, str(access)) == ("fd00::1", 443, "https://[fd00::1]:443")
    assert access.authorization() == "Bearer t"


def test_no_access_is_a_sentence(tmp_path):
    assert find_access(None, "") == (None, "not in a cluster, and no --kubeconfig")
    access, why = find_access(None, "10.0.0.1:443", tmp_path)
    assert access is None and "automountServiceAccountToken" in why


def test_a_certificate_that_is_none_is_an_error_of_the_connection(tmp_path):
    (tmp_path / "ca.crt").write_text("nonsense")
    with pytest.raises(ssl.SSLError):
        Access("h", 1, ca_file=tmp_path / "ca.crt").ssl_context()


def test_an_insecure_server_is_not_checked():
    context = Access("h", 1, insecure=True).ssl_context()
    assert context.verify_mode is ssl.CERT_NONE
    assert Access("h", 1, tls=False).ssl_context() is None


@pytest.mark.parametrize("broken", ["", "\n", "two\nlines\n", "\u00e9"])
def test_a_file_without_a_token_is_as_one_that_cannot_be_read(tmp_path, broken):
    """It may just be written anew; a header could not be made of it, and nobody expects that."""
    (tmp_path / "token").write_text(broken)
    with pytest.raises(OSError, match="has no token in it"):
        Access("h", 1, token_file=tmp_path / "token").authorization()
