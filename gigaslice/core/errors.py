# SPDX-License-Identifier: Apache-2.0
"""Every exception that Gigaslice raises on purpose, as one tree.

    GigasliceError                  str() is one line: what is wrong and what to do about it
    ├── InputError                  input of a person, a file or a peer cannot be used
    │   ├── TopologyError           a link matrix that describes no machine
    │   │   └── TopologyTextError   the same, in `nvidia-smi topo -m` text, with its line number
    │   ├── DeviceIdError           a device ID that is not "<GPU uuid>/<number>"
    │   ├── SizeError               a text that is no size in bytes
    │   └── MistakesError           several mistakes of one source, one line each
    │       ├── ConfigError         in flags, environment or configuration file
    │       └── InventoryError      in the file that lists the GPUs
    ├── MissingError                the machine lacks what is needed: a driver, a permission
    ├── SocketError                 a socket path that cannot be used
    ├── KubeletError                the kubelet does not answer, or refuses
    ├── ControlError                the agent refuses an administrator's command, or does not answer
    ├── LockedError                 another agent serves this resource or state directory
    └── StateError                  two records of what is allocated contradict each other
        ├── UnknownGpuError         a GPU this node does not have
        ├── UnknownOccupantError    a name that holds nothing here
        ├── DuplicateOccupantError  a name that already holds GPUs
        ├── OvercommitError         more slices than a GPU has left
        ├── CheckpointError         the checkpoint is damaged
        ├── CheckpointVersionError  the checkpoint is of a newer agent
        └── StorageError            the state directory cannot be read or written

A request that does not fit is no exception: it is the ordinary answer `gigaslice.core.model.Infeasible`, with a
reason. Exceptions of libraries are translated into this tree at the one module that imports the library, with
`from`.
"""

from collections.abc import Iterable


class GigasliceError(Exception):
    """Root of the tree: the agent reports `str(error)` as one line and never a traceback."""


class InputError(GigasliceError):
    """Input from outside cannot be used; the text names it and the remedy."""


class TopologyError(InputError):
    """A link matrix that describes no machine: not square, or a level that does not exist."""


class TopologyTextError(TopologyError):
    """A `nvidia-smi topo -m` text that cannot be read; `line` counts from 1."""

    def __init__(self, line: int, detail: str) -> None:
        super().__init__(f"topology text, line {line}: {detail}")
        self.line = line


class DeviceIdError(InputError):
    """A device ID that is not of the form "<GPU uuid>/<number>"."""


_USAGE = "write a number with KiB, MiB, GiB or TiB, as in 8GiB, above 0 and below 128 TiB"
_UNITS = "(8G is 8GiB; 8GB is refused)"


class SizeError(InputError, ValueError):
    """A text that is no size in bytes; its own text says what a size looks like, in the words of the library's
    (`size_usage` in `native/base/text.c`).
    """

    def __init__(self, text: str) -> None:
        alone = text.isascii() and text.replace(".", "", 1).isdigit()
        super().__init__(
            f"not a size: {text!r}; {_USAGE} "
            + ("(a number alone is GiB up to 9999 and bytes from 1048576 on)" if alone else _UNITS)
        )


class MistakesError(InputError):
    """Several mistakes of one source; `mistakes` has one line for each, and so has the text."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(self.mistakes))


class ConfigError(MistakesError):
    """Flags, environment and configuration file, taken together, are no configuration."""


class InventoryError(MistakesError):
    """The file that lists the GPUs cannot be used."""


class MissingError(GigasliceError):
    """The machine lacks what is needed, such as a driver or a permission."""


class SocketError(GigasliceError):
    """A socket path that cannot be used, or that belongs to another program."""


class KubeletError(GigasliceError):
    """The kubelet does not answer, or refuses a call."""


class ControlError(GigasliceError):
    """The agent refuses an administrator's command, or does not answer; nothing was changed."""


class LockedError(GigasliceError):
    """Another agent serves this resource or this state directory."""


class StateError(GigasliceError):
    """Two records of what is allocated contradict each other."""


class UnknownGpuError(StateError):
    """A GPU this node does not have."""


class UnknownOccupantError(StateError):
    """A name that holds nothing on this node."""


class DuplicateOccupantError(StateError):
    """A name that already holds GPUs on this node."""


class OvercommitError(StateError):
    """An allocation takes more slices or compute share than its GPU has left."""


class CheckpointError(StateError):
    """The checkpoint is damaged: cut short, changed, or not written by an agent."""


class CheckpointVersionError(StateError):
    """The checkpoint was written by a newer agent than this one."""


class StorageError(StateError):
    """The state directory cannot be read or written."""
