# SPDX-License-Identifier: Apache-2.0
"""A process that runs `gigaslice dataset pack` and gets a signal on its way: SIGNAL WHERE ARGUMENTS.

WHERE: fetch (after some files), hash, upload (after some parts), manifest (after the upload, before the manifest is put
there), tidying (after it was), removal (before the old pack's objects are removed), or never. Every read of a source's
file is noted in the file that READS names.
"""

from __future__ import annotations

import itertools
import os
import sys
import time

from gigaslice.roles.dataset_node.packing import image_file, object_store_target
from gigaslice.roles.dataset_node.sources import objects
from gigaslice_cli import frame

PART = 5 << 20


def at(what: str) -> None:
    if sys.argv[2] == what:
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(1)  # in the thread that is to be ended; the main thread has the signal


def counted(read, log):
    ended = itertools.count(1)  # where the server is slow, sixty reads begin before ten have ended

    def read_into(self, entry, *rest):
        time.sleep(0.005)  # what has arrived is noted every 20 ms
        read(self, entry, *rest)
        os.write(log, b"%s\n" % entry.path)
        if next(ended) == 60:
            at("fetch")

    return read_into


def before(original, what, found=lambda *_: True):
    def wrapped(*args, **kwargs):
        if found(*args):
            at(what)
        return original(*args, **kwargs)

    return wrapped


def slowed(read_pieces):
    def put(client, key, data, **options):
        if not isinstance(data, bytes):

            def pieces():
                for number, one in enumerate(data):
                    if number == 12:
                        time.sleep(0.5)  # parts are under way
                        os.kill(os.getpid(), int(sys.argv[1])) if sys.argv[2] == "upload" else None
                    if number >= 12 and sys.argv[2] == "upload":
                        time.sleep(0.2)
                    yield one

            return read_pieces(client, key, pieces(), **options)
        return read_pieces(client, key, data, **options)

    return put


if __name__ == "__main__":
    object_store_target._LEAST_PART = PART
    log = os.open(os.environ["READS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    objects.ObjectSource.read_into = counted(objects.ObjectSource.read_into, log)
    image_file.hashed = before(image_file.hashed, "hash")
    place = object_store_target.ObjectStoreTarget
    place.size = before(place.size, "manifest", lambda self, name: name.endswith(".img"))
    image_file.ImageFile.remove = before(image_file.ImageFile.remove, "tidying")
    place.remove = before(place.remove, "removal")
    object_store_target.obstore.put = slowed(object_store_target.obstore.put)
    sys.exit(frame.main(["dataset", "pack", *sys.argv[3:]]))
