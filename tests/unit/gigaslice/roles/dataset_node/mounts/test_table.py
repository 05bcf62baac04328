# SPDX-License-Identifier: Apache-2.0
from gigaslice.roles.dataset_node.mounts import parse_mountinfo, top_at

TEXT = rb"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:41 / /var/lib/gigaslice/mnt/abc ro,nosuid,nodev,relatime - erofs /var/lib/gigaslice/objects/abc.img ro
41 22 0:42 / /pods/a\040b/mount ro,nosuid,nodev shared:7 master:3 - tmpfs gigaslice-dataset ro,size=64k
42 22 0:41 / /pods/a\040b/mount ro,nosuid,nodev shared:8 - erofs /var/lib/gigaslice/objects/abc.img ro
43 22 8:1 /srv/data/it\134s /pods/local ro - ext4 /dev/sda1 rw
not a mount
44 22 8:1 /x
"""


def test_fields_and_escapes():
    table = parse_mountinfo(TEXT)
    assert [one.id for one in table] == [22, 40, 41, 42, 43]
    assert table[1].device == "0:41" and table[1].filesystem == "erofs"
    assert table[1].source == "/var/lib/gigaslice/objects/abc.img"
    assert {"ro", "nosuid", "nodev"} <= table[1].options
    assert table[4].root == "/srv/data/it\\s"


def test_of_several_mounts_at_one_point_the_last_is_on_top():
    top = top_at(parse_mountinfo(TEXT), "/pods/a b/mount")
    assert top is not None and top.filesystem == "erofs"
    assert top_at(parse_mountinfo(TEXT), "/pods") is None
