# SPDX-License-Identifier: Apache-2.0
"""Libraries whose own variables are named like driver functions (cuew): each has its own, and is limited."""

from __future__ import annotations

import pytest

from tests.native.running import CLIENTS, OUT_OF_MEMORY, SUCCESS

FILLED = 5
LIBRARIES = ("dynlink.so", "dynlink-table.so", "dynlink-sealed.so", "dynlink-open.so")

OPENED = """
import ctypes, _ctypes, sys
library, scope, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
if len(sys.argv) > 4: ctypes.CDLL("libcuda.so.1").cuInit(0)  # the driver is known already
for _ in range(times):
    d = ctypes.CDLL(library, mode=getattr(ctypes, scope))
    print(d.dynlink_load(b"local"), d.dynlink_use(ctypes.c_size_t(2 << 30)), d.dynlink_use(ctypes.c_size_t(1 << 20)))
    _ctypes.dlclose(d._handle)
"""


def expected(limit: str | None) -> list[str]:
    return [str(FILLED), str(OUT_OF_MEMORY if limit else SUCCESS), str(SUCCESS)]


@pytest.mark.parametrize("limit", [None, "1GiB"])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("scope", ["RTLD_LOCAL", "RTLD_GLOBAL"])
def test_a_library_that_is_opened(place, python, limit, library, scope):
    done = place.run(python, "-c", OPENED, CLIENTS / library, scope, "1", limit=limit)
    assert (done.returncode, done.stdout.split()) == (0, expected(limit)), done


@pytest.mark.parametrize("library", LIBRARIES)
def test_one_that_is_opened_again(place, python, library):
    done = place.run(python, "-c", OPENED, CLIENTS / library, "RTLD_LOCAL", "4", limit="1GiB")
    assert (done.returncode, done.stdout.split()) == (0, expected("1GiB") * 4), done


def test_one_that_comes_when_the_driver_is_known(place, python):
    done = place.run(python, "-c", OPENED, CLIENTS / "dynlink.so", "RTLD_LOCAL", "1", "known", limit="1GiB")
    assert (done.returncode, done.stdout.split()) == (0, expected("1GiB")), done


@pytest.mark.parametrize("limit", [None, "1GiB"])
@pytest.mark.parametrize("program", ["dynlink-user", "dynlink-main"])
@pytest.mark.parametrize("scope", ["local", "global"])
def test_a_program_that_has_them_from_its_start(place, limit, program, scope):
    """The last number: RTLD_DEFAULT finds the variable, which comes before the driver, as it does without us."""
    plain = place.run(CLIENTS / program, scope, LD_PRELOAD="")
    assert plain.stdout.split()[3] == "1"
    done = place.run(CLIENTS / program, scope, limit=limit)
    assert (done.returncode, done.stdout.split()) == (0, [*expected(limit), "1"]), done


OTHERS = (
    OPENED
    + """
other = ctypes.CDLL(sys.argv[5])
other.plugin_use.restype = ctypes.c_char_p
print(other.plugin_use().decode())
"""
)


@pytest.mark.parametrize("other", ["plugin.so", "plugin-linked.so"])
def test_others_in_the_same_process_are_limited_as_ever(place, python, other):
    library = CLIENTS / "dynlink.so"
    done = place.run(
        python, "-c", OTHERS, library, "RTLD_GLOBAL", "1", "known", CLIENTS / other, limit="1GiB"
    )
    assert (done.returncode, done.stdout.split()) == (0, [*expected("1GiB"), "limited"]), done
