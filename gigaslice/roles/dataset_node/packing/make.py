# SPDX-License-Identifier: Apache-2.0
"""Makes a pack: the image of a source, written by the fetch engine as on a node, its listing, and the manifest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from gigaslice.core.dataset.errors import DatasetError, ImageError, RequestError
from gigaslice.core.dataset.image import LAYOUT_VERSION, ImagePlan, plan
from gigaslice.core.dataset.listing import Listing
from gigaslice.core.dataset.pack_manifest import PackManifest
from gigaslice.core.dataset.source_spec import OBJECT_KINDS
from gigaslice.core.units import format_bytes
from gigaslice.roles.dataset_node.packing.image_file import NAME_DIGITS, ImageFile, ProgressShown
from gigaslice.roles.dataset_node.packing.pack_location import PackLocation, open_location, refuse_overlap
from gigaslice.roles.dataset_node.packing.pack_target import OWN_NAME, DirectoryTarget, PackTarget
from gigaslice.roles.dataset_node.sources.opening import OpenedSource, effective_spec
from gigaslice.roles.dataset_node.sources.protocol import in_thread
from gigaslice.runtime.files import remedy

__all__ = ["SCRATCH", "make_pack"]

SCRATCH = Path("/var/tmp")
_PATIENCE_SECONDS = 30.0  # for parts under way, so that their upload can be aborted


def make_pack(
    source: PackLocation,
    pack: PackLocation,
    *,
    force: bool = False,
    scratch: Path = SCRATCH,
    progress: ProgressShown | None = None,
    note: Callable[[str], None] | None = None,
    making: Callable[[Path], None] | None = None,
) -> PackManifest:
    """Makes PACK a pack of the files of SOURCE.

    Args:
        source: Only read.
        pack: A directory, made where there is none, or a prefix of a bucket.
        force: Replace a pack of something else.
        scratch: A directory for the image, until it is in the bucket.
        progress: Is called while bytes are read, hashed and uploaded.
        note: Is told what went wrong after the pack was complete.
        making: Is told the directory in which the image is made, before anything is written there.

    Returns:
        The manifest; that of the pack that is there already, when it is of the same listing.

    Raises:
        RequestError: PACK is in SOURCE, or has something else and FORCE is not given, or SOURCE is a pack.
        SourceError: SOURCE cannot be read, or changed meanwhile; or the bucket cannot be written to.
        CacheFullError: There is no room for the image.
        DatasetError: PACK cannot be written.
    """
    refuse_overlap(source, pack)
    if isinstance(source, Path):
        source = source.resolve()
    with _explained(pack):
        place = _place(source, pack, scratch)
        with _reader(source) as reader:
            listing = asyncio.run(reader.list())
            if reader.image is not None:
                raise RequestError(
                    f"{source} is a pack already, which nodes read as it is; copy it, or pack what it was made of"
                )
            old = _accepted(place, pack, listing, force)
            if old is not None and _is_of(place, old, listing):
                place.tidy()
                return old
            manifest = _write(
                reader,
                str(source),
                place,
                plan(listing),
                progress=progress or _unshown,
                making=making or _unshown,
            )
    if old is not None:
        try:
            _remove_old(place, old, manifest)
        except (DatasetError, OSError) as error:
            (note or _unshown)(f"the pack is complete, but the one before it was not removed: {error}")
    return manifest


def _unshown(*_: object) -> None:
    pass


@contextlib.contextmanager
def _explained(pack: PackLocation) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DatasetError(
            f"cannot write {error.filename or pack}: {error.strerror or error}; {remedy(error)}"
        ) from error


def _place(source: PackLocation, pack: PackLocation, scratch: Path) -> PackTarget:
    if isinstance(pack, Path):
        return DirectoryTarget(pack.absolute())
    if pack.spec.kind not in OBJECT_KINDS:
        raise RequestError(
            f"{pack} cannot be written to; put the pack into a directory, or into s3://, gs:// or az://"
        )
    if isinstance(source, Path) and source in (scratch.resolve(), *scratch.resolve().parents):
        raise RequestError(f"the scratch directory {scratch} is in {source}; name one outside of it")
    from gigaslice.roles.dataset_node.packing.object_store_target import ObjectStoreTarget  # noqa: PLC0415  (a library of some MiB)
    from gigaslice.roles.dataset_node.sources.object_stores import object_stores  # noqa: PLC0415

    really = effective_spec(pack.spec, pack.credentials)
    return ObjectStoreTarget(object_stores(really, pack.credentials, local=True), really, scratch)


@contextlib.contextmanager
def _reader(source: PackLocation) -> Iterator[OpenedSource]:
    reader = asyncio.run(open_location(source))
    try:
        yield reader
    finally:
        asyncio.run(reader.close())


def _accepted(place: PackTarget, pack: PackLocation, listing: Listing, force: bool) -> PackManifest | None:
    """The pack that is there. Raises RequestError when something is that must not be replaced."""
    try:
        old = place.manifest()
    except (ImageError, RequestError):
        if (name := place.other_file()) and not force:
            raise RequestError(
                f"{pack} has other files ({name}) and no pack; choose an empty place, or --force adds one to it"
            ) from None
        return None
    if old.listing_digest != listing.digest.hex() and not force:
        raise RequestError(
            f"{pack} is a pack of {old.source} with {old.files} files, {format_bytes(old.bytes)}; now there are "
            f"{listing.files} files, {format_bytes(listing.bytes)}, of other names, sizes, times; --force replaces it"
        )
    return old


def _is_of(place: PackTarget, old: PackManifest, listing: Listing) -> bool:
    """Whether the pack is complete and of LISTING; not whether its bytes are right, which takes as long as packing."""
    if old.listing_digest != listing.digest.hex() or old.layout != LAYOUT_VERSION:
        return False
    return [place.size(name) for name in (old.image, old.listing)] == [old.size, old.listing_size]


def _write(
    reader: OpenedSource,
    source: str,
    place: PackTarget,
    layout: ImagePlan,
    *,
    progress: ProgressShown,
    making: Callable[[Path], None],
) -> PackManifest:
    listing = layout.listing
    encoded = listing.encoded()
    name = f"{listing.digest.hex()[:NAME_DIGITS]}.listing"
    with place.workspace() as where:
        making(where)
        try:
            place.begin(name, encoded)
            work = ImageFile(where, layout)
            digest, parts = work.fill(reader, progress)
            manifest = PackManifest(
                source=source,
                layout=LAYOUT_VERSION,
                image=f"{digest[:NAME_DIGITS]}.img",
                size=layout.size,
                image_digest=digest,
                listing=name,
                listing_size=len(encoded),
                listing_digest=listing.digest.hex(),
                files=listing.files,
                bytes=listing.bytes,
                ranges=parts,
            )
            asyncio.run(
                in_thread(
                    "dataset-put",
                    lambda stop: place.finish(work.image, manifest, encoded, progress, stop),
                    patience=_PATIENCE_SECONDS,
                )
            )
        except BaseException:
            place.abandon()
            raise
        work.remove()
    return manifest


def _remove_old(place: PackTarget, old: PackManifest, new: PackManifest) -> None:
    there = place.manifest()  # another process may have put the old one there again
    kept = {new.image, new.listing, there.image, there.listing}
    place.remove(name for name in (old.image, old.listing) if OWN_NAME.fullmatch(name) and name not in kept)
