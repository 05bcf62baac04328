# SPDX-License-Identifier: Apache-2.0
"""Nothing is mounted outside of the kubelet's pods, and nowhere a link leads."""

import pytest

from gigaslice.core.dataset.errors import RequestError
from gigaslice.roles.dataset_node.csi.target import check_target

UID = "f422062a-141d-46fc-8651-264244f5f1d6"


@pytest.fixture
def pods(tmp_path):
    (tmp_path / "pods" / UID / "volumes" / "kubernetes.io~csi" / "data").mkdir(parents=True)
    return tmp_path / "pods"


def path(pods, uid=UID, volume="data", end="mount"):
    return f"{pods}/{uid}/volumes/kubernetes.io~csi/{volume}/{end}"


def test_the_kubelets_paths(pods):
    target = check_target(path(pods), pods, pod_uid=UID)
    assert (target.path, target.pod_uid, target.volume) == (path(pods), UID, "data")
    (pods / UID / "volumes/kubernetes.io~csi/data/mount").mkdir()
    assert check_target(path(pods), pods) == target


@pytest.mark.parametrize(
    "wrong",
    [
        "/etc",
        "",
        "relative/mount",
        "{pods}",
        "{pods}/../etc/x/volumes/kubernetes.io~csi/data/mount",
        "{pods}/{uid}/volumes/kubernetes.io~csi/../kubernetes.io~csi/data/mount",
        "{pods}/{uid}/volumes/kubernetes.io~csi/data/mount/",
        "{pods}/{uid}/volumes/kubernetes.io~csi/data/mount/../../x",
        "{pods}/{uid}/volumes/kubernetes.io~empty-dir/data/mount",
        "{pods}/{uid}/volumes/kubernetes.io~csi/Da ta/mount",
        "{pods}/{uid}/volumes/kubernetes.io~csi/data/other",
        "{pods}//volumes/kubernetes.io~csi/data/mount",
        "{pods}x/{uid}/volumes/kubernetes.io~csi/data/mount",
        "{pods}/{uid}/volumes/kubernetes.io~csi/..\n/mount",
    ],
)
def test_anything_else_is_refused(pods, wrong):
    with pytest.raises(RequestError, match="--kubelet-root") as caught:
        check_target(wrong.format(pods=pods, uid=UID), pods)
    assert "\n" not in str(caught.value)


def test_another_pods_path_is_refused(pods):
    with pytest.raises(RequestError, match="not of pod other"):
        check_target(path(pods), pods, pod_uid="other")


@pytest.mark.parametrize("part", ["uid", "volumes", "csi", "data", "mount"])
def test_no_link_is_followed(pods, tmp_path, part):
    outside = tmp_path / "outside"
    below = {
        "uid": pods / UID,
        "volumes": pods / UID / "volumes",
        "csi": pods / UID / "volumes/kubernetes.io~csi",
        "data": pods / UID / "volumes/kubernetes.io~csi/data",
        "mount": pods / UID / "volumes/kubernetes.io~csi/data/mount",
    }[part]
    if below.exists():
        below.rename(outside)
    else:
        outside.mkdir()
    below.symlink_to(outside)
    with pytest.raises(RequestError, match="nothing is mounted through links"):
        check_target(path(pods), pods)


def test_a_file_is_no_directory(pods):
    (pods / UID / "volumes/kubernetes.io~csi/data/mount").write_text("")
    with pytest.raises(RequestError, match="is no directory"):
        check_target(path(pods), pods)
