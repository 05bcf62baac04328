# SPDX-License-Identifier: Apache-2.0
"""Memory of several processes is paid once: by its exporter while that holds it, then as NVML measures it.

Importers are never charged and never refund. What an exporter let go of and others still hold appears in NVML's process
lists under one of them (docs/adr/0014), which is what the agent counts."""

from __future__ import annotations

import json

import pytest

from agent.ledgers.undeclared import undeclared_bytes
from tests.native.running import CONTEXT, GIB, INVALID_VALUE, MIB, OUT_OF_MEMORY, SUCCESS, Place, eventually

PART = 2 * MIB
BLOCK = 512 * MIB


def shared(exporter, size=BLOCK, device=0):
    """(handle, fd) of new memory that others can import."""
    code, handle = exporter(f"d.create({size}, prop({device}, handle_types=POSIX_FD))")
    assert code == SUCCESS
    code, fd = exporter(f"d.export({handle})")
    assert code == SUCCESS
    return handle, fd


def measured(place, device=0):
    """Bytes of each process on a GPU, past the library."""
    state = json.loads(place.fakectl("state"))
    return {process["pid"]: process["used"][device] for process in state["processes"]}


def test_an_importer_in_the_same_quota_pays_nothing(place):
    with place.program("1GiB") as exporter, place.program("1GiB") as importer:
        handle, fd = shared(exporter)
        assert exporter("d.used()") == 2 * CONTEXT + BLOCK
        code, taken = importer(f"d.take_in_from({exporter.pid}, {fd})")
        assert code == SUCCESS
        base = importer(f"d.reserve({BLOCK})")
        assert importer(f"d.map({base}, {BLOCK}, {taken})") == SUCCESS
        assert importer(f"d.retain({base} + 1)") == [SUCCESS, taken]
        assert importer("d.used(), d.really_used()") == [2 * CONTEXT + BLOCK] * 2
        assert importer(f"[d.release({taken}), d.release({taken}), d.unmap({base}, {BLOCK})]") == [0, 0, 0]
        assert importer(f"d.release({taken})") == INVALID_VALUE
        assert importer("d.used()") == 2 * CONTEXT + BLOCK, "the exporter still pays"
        assert exporter(f"d.release({handle})") == SUCCESS
        assert exporter("d.used(), d.really_used()") == [2 * CONTEXT] * 2


def test_an_importer_of_another_quota_pays_nothing(tmp_path):
    here, there = Place(tmp_path), Place(tmp_path)
    with (
        here.program("1GiB") as exporter,
        there.program("1GiB", VCUDA_DIR=str(tmp_path / "other")) as importer,
    ):
        _, fd = shared(exporter)
        code, taken = importer(f"d.take_in_from({exporter.pid}, {fd})")
        assert code == SUCCESS
        assert (exporter("d.used()"), importer("d.used()")) == (CONTEXT + BLOCK, CONTEXT)
        assert importer(f"d.create({GIB - CONTEXT - CONTEXT % PART})[0]") == SUCCESS, (
            "its own quota is its own"
        )
        assert importer(f"d.release({taken})") == SUCCESS
        assert exporter("d.used()") == CONTEXT + BLOCK


def test_an_import_that_does_not_fit_the_quota_is_no_allocation(place):
    with place.program("600MiB") as exporter, place.program("600MiB") as importer:
        _, fd = shared(exporter, 400 * MIB)
        assert importer("d.free()") == 0
        assert importer(f"d.take_in_from({exporter.pid}, {fd})[0]") == SUCCESS
        assert importer(f"d.create({PART})[0]") == OUT_OF_MEMORY


def test_when_the_exporter_lets_go_the_importer_is_measured(place):
    with place.program("2GiB") as exporter, place.program("2GiB") as importer:
        handle, fd = shared(exporter)
        _, taken = importer(f"d.take_in_from({exporter.pid}, {fd})")
        base = importer(f"d.reserve({BLOCK})")
        assert importer(f"d.map({base}, {BLOCK}, {taken})") == SUCCESS
        assert measured(place) == {exporter.pid: CONTEXT + BLOCK, importer.pid: CONTEXT}
        assert exporter(f"d.release({handle})") == SUCCESS
        assert exporter("d.used(), d.really_used()") == [2 * CONTEXT + BLOCK] * 2
        assert measured(place) == {exporter.pid: CONTEXT, importer.pid: CONTEXT + BLOCK}
        assert eventually(lambda: importer("d.used()") == 2 * CONTEXT + 2 * BLOCK), "it has measured itself"
        assert eventually(lambda: exporter("d.used()") == 2 * CONTEXT + BLOCK), "the exporter is done"
        assert importer(f"d.create({2 * GIB - BLOCK})[0]") == OUT_OF_MEMORY
        assert importer(f"[d.release({taken}), d.unmap({base}, {BLOCK})]") == [SUCCESS, SUCCESS]
        assert eventually(lambda: importer("d.used()") == 2 * CONTEXT)
        assert exporter("d.used(), d.really_used()") == [2 * CONTEXT] * 2


class Process:
    """A living process of the ledger, as the agent sees it."""

    def __init__(self, pid, used):
        self.pid = pid
        self.used = {"GPU": used}


def test_the_agent_counts_it_once_at_every_moment(place):
    with place.program("1GiB") as exporter, place.program("1GiB") as importer:
        handle, fd = shared(exporter)
        _, taken = importer(f"d.take_in_from({exporter.pid}, {fd})")

        def counted(declared):
            """What the quota counts: declared bytes, and what the agent measures beyond them."""
            ledger = [Process(exporter.pid, CONTEXT + declared), Process(importer.pid, CONTEXT)]
            beyond = undeclared_bytes(ledger, ledger, {"GPU": measured(place)}, ["GPU"])
            return sum(process.used["GPU"] for process in ledger) + beyond["GPU"]

        assert counted(BLOCK) == 2 * CONTEXT + BLOCK
        assert exporter(f"d.release({handle})") == SUCCESS
        assert eventually(lambda: exporter("d.used()") == 2 * CONTEXT), "no longer charged to the exporter"
        assert counted(0) == 2 * CONTEXT + BLOCK
        assert importer(f"d.release({taken})") == SUCCESS
        assert counted(0) == 2 * CONTEXT


def test_a_process_that_imports_its_own_export_refunds_nothing_twice(place):
    with place.program("1GiB") as program:
        handle, fd = shared(program)
        code, again = program(f"d.take_in({fd})")
        assert code == SUCCESS
        assert program("d.used()") == CONTEXT + BLOCK
        assert program(f"d.release({again})") == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT + BLOCK] * 2
        assert program(f"d.release({handle})") == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2


def test_an_own_export_that_outlives_the_original_is_measured(place):
    with place.program("1GiB") as program:
        handle, fd = shared(program)
        _, again = program(f"d.take_in({fd})")
        assert program(f"d.release({handle})") == SUCCESS
        assert eventually(lambda: program("d.used()") == CONTEXT + BLOCK)
        assert program(f"d.create({BLOCK})[0]") == OUT_OF_MEMORY
        assert program(f"d.release({again})") == SUCCESS
        assert program(f"d.create({BLOCK})[0]") == SUCCESS, (
            "what was measured is measured again before a refusal"
        )


SAME_HANDLE = """
import ctypes
from tests.native.programs.vmm import *
d = Driver(0)
code, handle = d.create({size}, prop(handle_types=POSIX_FD))
code, fd = d.export(handle)
print(code, d.take_in(fd)[1] == handle, d.used())
print(d.release(handle), d.used(), d.release(handle), d.used(), d.release(handle), d.used())
"""


def test_a_driver_that_knows_its_own_export_again(place, python):
    """It may answer an import with the handle it has: one handle then, with one reference more."""
    run = SAME_HANDLE.format(size=BLOCK)
    done = place.run(python, "-c", run, limit="1GiB", FAKEDRIVER_IMPORT="same", **place.python_env())
    assert done.stdout.split() == [
        *("0", "True", str(CONTEXT + BLOCK)),
        *("0", str(CONTEXT + BLOCK), "0", str(CONTEXT), "1", str(CONTEXT)),
    ], done.stderr


def test_a_killed_exporter_is_paid_no_more(place):
    with place.program("1GiB") as importer:
        with place.program("1GiB") as exporter:
            _, fd = shared(exporter)
            code, taken = importer(f"d.take_in_from({exporter.pid}, {fd})")
            assert code == SUCCESS
        assert importer("d.used()") == CONTEXT
        assert importer(f"d.release({taken})") == SUCCESS
        assert importer("d.used()") == CONTEXT


# --- older ways to share -------------------------------------------------------------------------------------


def test_ipc_handles_cost_and_refund_nothing(place):
    with place.program("1GiB") as exporter, place.program("1GiB") as importer:
        exporter("d.current(0)")
        block = exporter(
            f"[p := c_uint64(), d.good(d.cuda.cuMemAlloc_v2(byref(p), c_size_t({BLOCK}))), p.value][2]"
        )
        token = exporter(
            "[t := (c_char * 64)(), d.current(0), "
            f"d.good(d.cuda.cuIpcGetMemHandle(byref(t), c_uint64({block}))), t.raw.hex()][3]"
        )
        importer("d.current(0)")
        twice = ("cuIpcCloseMemHandle", "cuIpcCloseMemHandle")
        wrongly = ("cuMemFree_v2", "cuIpcCloseMemHandle")
        for opener, ends in (("cuIpcOpenMemHandle", twice), ("cuIpcOpenMemHandle_v2", wrongly)):
            opened = importer(
                f"[H := type('H', (ctypes.Structure,), dict(_fields_=[('t', c_char * 64)])), p := c_uint64(), "
                f"d.current(0), h := H.from_buffer_copy(bytes.fromhex('{token}')), "
                f"d.good(d.cuda.{opener}(byref(p), h, 1)), p.value][5]"
            )
            assert importer("d.used()") == 2 * CONTEXT + BLOCK
            for end in ends:
                importer(f"[d.current(0), d.cuda.{end}(c_uint64({opened}))]")
                assert importer("d.used(), d.really_used()") == [2 * CONTEXT + BLOCK] * 2
        assert exporter(f"[d.current(0), d.cuda.cuMemFree_v2(c_uint64({block}))][1]") == SUCCESS
        assert exporter("d.used(), d.really_used()") == [2 * CONTEXT] * 2


def test_external_memory_costs_and_refunds_nothing(place):
    with place.program("1GiB") as exporter, place.program("1GiB") as importer:
        handle, fd = shared(exporter)
        external = importer(f"d.external(d.open_of({exporter.pid}, {fd}), {BLOCK})")
        buffer = importer(f"d.external_buffer({external}, {BLOCK})")
        assert importer("d.used(), d.really_used()") == [2 * CONTEXT + BLOCK] * 2
        assert importer(f"[d.current(0), d.cuda.cuMemFree_v2(c_uint64({buffer}))][1]") == SUCCESS
        assert importer("d.used()") == 2 * CONTEXT + BLOCK
        assert importer(f"d.cuda.cuDestroyExternalMemory(c_void_p({external}))") == SUCCESS
        assert importer("d.used(), d.really_used()") == [2 * CONTEXT + BLOCK] * 2
        assert exporter(f"d.release({handle})") == SUCCESS
        assert exporter("d.used(), d.really_used()") == [2 * CONTEXT] * 2


# --- multicast -----------------------------------------------------------------------------------------------


def team_of(program, *devices):
    code, team = program(f"d.multicast({4 * PART}, {len(devices)}, POSIX_FD)")
    assert code == SUCCESS
    for device in devices:
        assert program(f"d.add_device({team}, {device})") == SUCCESS
    return team


@pytest.mark.parametrize("named", [None, 1], ids=["by the memory's device", "by a named device"])
@pytest.mark.parametrize("by", ["handle", "address"])
def test_bound_memory_is_paid_until_it_is_unbound(place, by, named):
    with place.program("1GiB", "1") as program:
        team = team_of(program, 1)
        base = program(f"d.reserve({PART})")
        _, handle = program(f"d.create({PART}, prop(1))")
        assert program(f"d.map({base}, {PART}, {handle})") == SUCCESS
        bind = (
            f"d.bind({team}, {PART}, {handle}" if by == "handle" else f"d.bind_address({team}, {PART}, {base}"
        )
        assert program(f"{bind}, {PART}, {named})") == SUCCESS
        assert program(f"[d.release({handle}), d.unmap({base}, {PART})]") == [SUCCESS, SUCCESS]
        assert program("d.used(1), d.really_used(1)") == [CONTEXT + PART] * 2
        assert program(f"d.unbind({team}, 1, 0, {PART})") == INVALID_VALUE
        assert program("d.used(1)") == CONTEXT + PART
        assert program(f"d.unbind({team}, 1, {PART}, {PART})") == SUCCESS
        assert program("d.used(1), d.really_used(1)") == [CONTEXT] * 2
        assert program(f"d.release({team})") == SUCCESS


def test_the_end_of_a_team_unbinds_everything(place):
    with place.program("1GiB", "0,1") as program:
        team = team_of(program, 0, 1)
        base = program(f"d.reserve({4 * PART})")
        for device in (0, 1):
            for part in (0, 1):
                _, handle = program(f"d.create({PART}, prop({device}))")
                assert program(f"d.bind({team}, {part * PART}, {handle}, {PART})") == SUCCESS
                assert program(f"d.release({handle})") == SUCCESS
        assert program(f"d.map({base}, {4 * PART}, {team})") == SUCCESS
        assert program(f"d.release({team})") == SUCCESS
        assert program("d.used(0), d.used(1)") == [CONTEXT + 2 * PART] * 2
        assert program(f"d.unmap({base}, {4 * PART})") == SUCCESS
        assert program("d.used(0), d.used(1), d.really_used(0), d.really_used(1)") == [CONTEXT] * 4


def test_an_imported_team_keeps_what_this_process_bound(place):
    with place.program("1GiB") as first, place.program("1GiB") as second:
        team = team_of(first, 0)
        _, fd = first(f"d.export({team})")
        code, taken = second(f"d.take_in_from({first.pid}, {fd})")
        assert code == SUCCESS
        _, handle = second(f"d.create({PART}, prop(0, handle_types=POSIX_FD))")
        assert second(f"[d.bind({taken}, 0, {handle}, {PART}), d.release({handle})]") == [SUCCESS, SUCCESS]
        assert second("d.used(), d.really_used()") == [2 * CONTEXT + PART] * 2
        assert second(f"d.release({taken})") == SUCCESS
        assert second("d.used(), d.really_used()") == [2 * CONTEXT] * 2


@pytest.mark.parametrize(
    "call", ["cuMulticastBindMem", "cuMulticastBindAddr", "cuMulticastUnbind", "cuMulticastCreate"]
)
def test_what_the_driver_refuses_a_team_changes_nothing(place, call):
    with place.program("1GiB") as program:
        team, base = team_of(program, 0), program(f"d.reserve({PART})")
        _, handle = program(f"d.create({PART})")
        program(f"d.map({base}, {PART}, {handle})")
        if call == "cuMulticastUnbind":
            assert program(f"d.bind({team}, 0, {handle}, {PART})") == SUCCESS
        place.fakectl("fail", call, 999, 1, "--pid", program.pid)
        does = {
            "cuMulticastBindMem": f"d.bind({team}, 0, {handle}, {PART})",
            "cuMulticastBindAddr": f"d.bind_address({team}, 0, {base}, {PART})",
            "cuMulticastUnbind": f"d.unbind({team}, 0, 0, {PART})",
            "cuMulticastCreate": f"d.multicast({PART})[0]",
        }
        assert program(does[call]) == 999
        assert program(f"[d.release({handle}), d.unmap({base}, {PART})]") == [SUCCESS, SUCCESS]
        still = PART if call == "cuMulticastUnbind" else 0
        assert program("d.used(), d.really_used()") == [CONTEXT + still] * 2
        assert program(f"d.release({team})") == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2


# --- logical endpoints -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["handle", "address"])
@pytest.mark.parametrize("kind", ["unicast", "multicast"])
def test_memory_bound_to_an_endpoint_is_paid_until_it_is_unbound(place, kind, by):
    with place.program("1GiB", "1") as program:
        how = "device=1" if kind == "unicast" else "devices=1"
        code, endpoint = program(f"d.endpoint({4 * PART}, {how})")
        assert code == SUCCESS
        if kind == "multicast":
            assert program(f"d.join_endpoint({endpoint}, 1)") == SUCCESS
        base = program(f"d.reserve({PART})")
        _, handle = program(f"d.create({PART}, prop(1))")
        assert program(f"d.map({base}, {PART}, {handle})") == SUCCESS
        call, what = ("bind_endpoint", handle) if by == "handle" else ("bind_endpoint_address", base)
        assert program(f"d.{call}({endpoint}, 1, {PART}, {what}, {PART})") == SUCCESS
        assert program(f"[d.release({handle}), d.unmap({base}, {PART})]") == [SUCCESS, SUCCESS]
        assert program("d.used(1), d.really_used(1)") == [CONTEXT + PART] * 2
        assert program(f"d.unbind_endpoint({endpoint}, 1, 0, {PART})") == INVALID_VALUE
        assert program("d.used(1)") == CONTEXT + PART
        assert program(f"d.unbind_endpoint({endpoint}, 1, {PART}, {PART})") == SUCCESS
        assert program("d.used(1), d.really_used(1)") == [CONTEXT] * 2
        assert program(f"d.end_endpoint({endpoint})") == SUCCESS


def test_the_end_of_an_endpoint_unbinds_everything_and_its_number_may_come_again(place):
    with place.program("1GiB") as program:
        for _ in range(2):
            code, endpoint = program(f"d.endpoint({4 * PART}, device=0)")
            assert code == SUCCESS
            for part in range(3):
                _, handle = program(f"d.create({PART})")
                assert program(f"d.bind_endpoint({endpoint}, 0, {part * PART}, {handle}, {PART})") == SUCCESS
                assert program(f"d.release({handle})") == SUCCESS
            assert program("d.used(), d.really_used()") == [CONTEXT + 3 * PART] * 2
            assert program(f"d.unbind_endpoint({endpoint}, 0, 0, {2 * PART})") == SUCCESS, "two at once"
            assert program("d.used(), d.really_used()") == [CONTEXT + PART] * 2
            assert program(f"d.end_endpoint({endpoint})") == SUCCESS
            assert program("d.used(), d.really_used()") == [CONTEXT] * 2
            assert program(f"d.cuda.cuLogicalEndpointIdRelease({endpoint}, 1)") == SUCCESS


def test_memory_bound_to_an_imported_endpoint_is_paid_too(place):
    with place.program("1GiB") as program:
        _, endpoint = program(f"d.endpoint({2 * PART}, device=0, shared=True)")
        code, imported = program(f"d.endpoint_again({endpoint})")
        assert code == SUCCESS
        assert imported != endpoint
        _, handle = program(f"d.create({PART})")
        assert program(f"d.bind_endpoint({imported}, 0, 0, {handle}, {PART})") == SUCCESS
        assert program(f"d.release({handle})") == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT + PART] * 2
        assert program(f"d.unbind_endpoint({imported}, 0, 0, {PART})") == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2
        assert program(f"[d.end_endpoint(each) for each in ({imported}, {endpoint})]") == [SUCCESS] * 2


@pytest.mark.parametrize("call", ["BindMem", "BindAddr", "Unbind", "Create", "Destroy"])
def test_what_the_driver_refuses_an_endpoint_changes_nothing(place, call):
    with place.program("1GiB") as program:
        _, endpoint = program(f"d.endpoint({PART}, device=0)")
        base = program(f"d.reserve({PART})")
        _, handle = program(f"d.create({PART})")
        program(f"d.map({base}, {PART}, {handle})")
        bound = call in ("Unbind", "Destroy")
        if bound:
            assert program(f"d.bind_endpoint({endpoint}, 0, 0, {handle}, {PART})") == SUCCESS
        place.fakectl("fail", f"cuLogicalEndpoint{call}", 999, 1, "--pid", program.pid)
        does = {
            "BindMem": f"d.bind_endpoint({endpoint}, 0, 0, {handle}, {PART})",
            "BindAddr": f"d.bind_endpoint_address({endpoint}, 0, 0, {base}, {PART})",
            "Unbind": f"d.unbind_endpoint({endpoint}, 0, 0, {PART})",
            "Create": f"d.endpoint({PART}, device=0)[0]",
            "Destroy": f"d.end_endpoint({endpoint})",
        }
        assert program(does[call]) == 999
        assert program(f"[d.release({handle}), d.unmap({base}, {PART})]") == [SUCCESS, SUCCESS]
        assert program("d.used(), d.really_used()") == [CONTEXT + PART * bound] * 2
        assert program(f"d.end_endpoint({endpoint})") == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2
