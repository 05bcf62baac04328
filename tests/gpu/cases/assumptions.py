# SPDX-License-Identifier: Apache-2.0
"""A: what the design takes for granted of driver and NVML, as raw numbers. docs/proofs/hardware.md has a row
for each check.

Ordered by what would hurt most if it were false, so that a budget that ends early has paid for the right
things.
"""

from __future__ import annotations

import re

from tests.gpu.world import ROOT, CaseError, Found, World, case, gib, whole

HOOK_LINE = re.compile(r"^HOOK\(\s*[A-Z]+,\s*(\w+)", re.MULTILINE)


def hooked() -> list[str]:
    """The CUDA functions that the library takes the place of, from its own lists."""
    texts = [path.read_text() for path in sorted((ROOT / "native/hooks/cuda").glob("*.def"))]
    return [name for text in texts for name in HOOK_LINE.findall(text)]


def judged(found: Found, numbers: dict) -> None:
    """Takes over what the program itself has judged."""
    for name, value in numbers.items():
        if name.startswith("check_"):
            found.check(name.removeprefix("check_"), value[0], value[1])


def ask(world: World, found: Found, program: str, *words: object, env: dict[str, str] | None = None) -> dict:
    """Runs a program that judges by itself, without the library; what it judged before it failed is kept."""
    try:
        return world.run(world.plain() if env is None else env, program, *words)
    finally:
        judged(found, found.numbers)


def names_file(world: World) -> str:
    """A file with the hooked names."""
    path = world.options.scratch / "names"
    path.write_text("\n".join(hooked()))
    return str(path)


@case("A", 12, "identity", "own_address", "both_versions_agree", "one_library", "within_2_gib")
def pointers(world: World, found: Found) -> str:
    """cuGetProcAddress gives the addresses that dlsym gives, for every hooked name, version and flag."""
    got = world.run(world.plain(), "pointers.py", names_file(world))
    found.check(
        "identity",
        got["strangers"] == 0 and whole(got, "asked") > 1000,
        f"{got['strangers']} of {got['asked']} pointers are no exported function's: {got['stray']}",
    )
    found.check("own_address", not got["shared"], got["shared"] or "no two functions share one")
    found.check("both_versions_agree", got["differing"] == 0, f"{got['differing']} answers differ")
    found.check("one_library", len(got["places"]) == 1 and "cuda" in got["places"][0], got["places"])
    found.check(
        "within_2_gib", whole(got, "spread") < 1 << 31, f"{got['spread']} bytes from the first to the last"
    )
    return f"{got['asked']} pointers of {got['present']} functions; absent: {len(got['absent'])}"


@case("A", 12, "all_lead_to_the_library", "dlsym_leads_to_the_library")
def lookups(world: World, found: Found) -> str:
    """Under the library every hooked function that the driver has is the library's, whichever lookup is used."""
    env = world.limited(VCUDA_CORES="99")  # with a share nothing is left to the driver
    got = world.run(env, "pointers.py", names_file(world))
    missed = [one for one in got["stray"] if "vcuda" not in one[3]]
    found.check(
        "all_lead_to_the_library",
        not got["outside"] and not missed and whole(got, "asked") > 1000,
        {"driver's": got["outside"], "unknown": missed}
        if got["outside"] or missed
        else f"all {got['asked']}",
    )
    places = [place for place in got["places"] if "vcuda" not in place]
    found.check("dlsym_leads_to_the_library", not places, places or got["places"])
    return f"{got['asked']} answers, by place: {got['by_place']}"


def runtime(world: World, found: Found, version: str) -> str:
    """A runtime of that major version under a quota."""
    env = world.limited(GPU_PACK=str(world.options.pack / "site"))
    got = world.run(env, "runtime.py", version)
    ways = {name: value for name, value in got.items() if name.startswith("cudaMalloc")}
    charged = {name: one for name, one in ways.items() if one["code"] == 0 and one["hooked"] < 60 << 20}
    found.check(
        "allocations_are_charged",
        bool(ways) and not charged,
        charged or {n: o["hooked"] for n, o in ways.items()},
    )
    beyond = {name: one["over"] for name, one in ways.items() if one["over"] != 2}
    found.check("refused_beyond_the_quota", bool(ways) and not beyond, beyond or "2 from each")
    found.check("the_quota_is_shown", got["total"] == world.limit, f"cudaMemGetInfo total {got['total']}")
    failed = {name: one["code"] for name, one in ways.items() if one["code"] != 0}
    found.check("they_work", bool(ways) and not failed, failed or sorted(ways))
    kept = {name: one["kept"] for name, one in ways.items() if one["kept"] > 64 << 20}
    found.check("freeing_gives_back", not kept, kept or "all")
    return f"runtime {got['version']}: {', '.join(sorted(ways))}"


RUNTIME_CHECKS = (
    "allocations_are_charged",
    "refused_beyond_the_quota",
    "the_quota_is_shown",
    "they_work",
    "freeing_gives_back",
)


@case("A", 20, *RUNTIME_CHECKS)
def runtime_13(world: World, found: Found) -> str:
    """What a program takes through CUDA's runtime 13 is charged."""
    return runtime(world, found, "13")


@case("A", 20, *RUNTIME_CHECKS)
def runtime_12(world: World, found: Found) -> str:
    """What a program takes through CUDA's runtime 12 is charged."""
    return runtime(world, found, "12")


@case("A", 30, "the_trace_counts", "allocations_pass_hooks", "frees_pass_hooks", "nothing_goes_past")
def runtime_calls(world: World, found: Found) -> str:
    """Which of the driver's functions CUDA's runtime 13 calls for each of its own, private tables included."""
    trace, hooks = str(world.brought("trace.so")), set(hooked())
    env = world.plain(LD_PRELOAD=trace, GPU_PACK=str(world.options.pack / "site"))
    try:
        got = world.run(env, "runtime.py", "13", seconds=12)
    except CaseError as error:
        if error.verdict == "missing":
            raise
        found.note({"private tables are not counted, since with copies of them": str(error)})
        env |= {"GIGASLICE_TRACE_TABLES": "0"}
        got = world.run(env, "runtime.py", "13")
    finally:
        itself = found.numbers.get("calls of itself", {})
        found.check("the_trace_counts", any(name.startswith("cuMemAlloc_v2 in") for name in itself), itself)
    calls = {
        name.removeprefix("calls of "): value
        for name, value in got.items()
        if name.startswith("calls of cuda")
    }
    ways = {name: [one.split(" in ")[0] for one in value] for name, value in calls.items() if "," not in name}
    past = {name: made for name, made in ways.items() if not hooks.intersection(made)}
    found.check("allocations_pass_hooks", bool(ways) and not past, past or ways)
    gone = {name: list(value) for name, value in calls.items() if name.endswith("given back")}
    unseen = {
        name: made for name, made in gone.items() if not any(one.split(" in ")[0] in hooks for one in made)
    }
    found.check("frees_pass_hooks", bool(gone) and not unseen, unseen or "all")
    under = dict(env) | world.limited(LD_PRELOAD=f"{trace} {world.options.library}")
    limited = world.run(under, "runtime.py", "13", prefix="limited ")
    stray = {
        name: [one for one in value if one.split(" in ")[0] in hooks and "libcuda" in one.split(" in ")[1]]
        for name, value in limited.items()
        if name.startswith("calls of cuda")
    }
    # Without a share launches, copies and questions are left to the driver on purpose; no step here makes any.
    left = {
        name: made for name, made in stray.items() if any("Alloc" in one or "Free" in one for one in made)
    }
    found.check(
        "nothing_goes_past", bool(stray) and not left, left or "every hooked call reaches the library"
    )
    return "; ".join(f"{name}: {', '.join(made)}" for name, made in ways.items())[:600]


def blas() -> str:
    """cuBLAS among the installed packages, if it is there."""
    import sys
    from pathlib import Path

    found = [
        path for place in sys.path for path in sorted(Path(place or ".").glob("nvidia/*/lib/libcublas.so.*"))
    ]
    return str(found[0]) if found else ""


@case(
    "A",
    25,
    "a_context_makes_it_listed",
    "context_is_measured",
    "contexts_cost_the_same",
    "memory_is_seen_at_once",
    "rounded_by_2_mib",
    "static_arrays_are_seen",
    "unloading_gives_back",
    "page_tables_are_small",
    "own_and_gpu_agree",
    "charges_cover_it",
)
def nvml_bytes(world: World, found: Found) -> str:
    """What each operation takes by NVML, plain; and under the library what it is charged."""
    plain = ask(world, found, "bytes.py", blas())
    found.numbers = dict(found.numbers)
    under = world.run(world.limited(), "bytes.py", blas(), prefix="limited ")
    steps = {name.removeprefix("step "): value for name, value in plain.items() if name.startswith("step ")}
    limited = {name.removeprefix("step "): value for name, value in under.items() if name.startswith("step ")}
    # The calls that declare their size must be charged at least that much less the driver's rounding.
    declared = (
        "2 MiB",
        "1 GiB",
        "graph of 64 MiB",
        "1 GiB in 512 mappings",
        "1 byte of a pool",
        "module with 64 MiB",
    )
    short = {
        name: [steps[name][0], limited[name][2]]
        for name in declared
        if limited[name][2] < steps[name][0] - (4 << 20)
    }
    in_force = under["total"] == world.limit
    found.check(
        "charges_cover_it", in_force and not short, short or {name: limited[name][2] for name in declared}
    )
    return f"context {gib(steps['context'][0])}, second one {gib(steps['second context'][0])}, {len(steps)} steps"


@case(
    "A",
    12,
    "exporter_pays_handles",
    "memory_stays_with_an_importer",
    "the_importer_pays_on",
    "all_gone_at_the_end",
    "exporter_pays_ipc",
    "ipc_ends",
)
def shared_memory(world: World, found: Found) -> str:
    """Whom NVML charges for memory that two processes share."""
    got = ask(world, found, "charged.py")
    return f"after the exporter has let go: {got['handle: the exporter has let go']}"


def subject(world: World, found: Found, name: str) -> str:
    """One subject of rules.py."""
    got = ask(world, found, "rules.py", name)
    return f"{len(found.checks)} rules: " + ", ".join(sorted(found.checks)) if found.checks else str(got)


@case("A", 8, "refusal_is_2", "outputs_untouched", "forked_child_is_refused")
def failures(world: World, found: Found) -> str:
    """What the driver answers when it refuses, and in a forked child."""
    return subject(world, found, "failures")


@case(
    "A",
    8,
    "relaxed_calls_pass",
    "capturing_is_told",
    "asking_for_legacy_is_harmless",
    "captured_allocation_takes_nothing",
)
def capture(world: World, found: Found) -> str:
    """What the library calls while a program captures disturbs no capture."""
    return subject(world, found, "capture")


@case(
    "A",
    8,
    "the_default_pool_has_one_handle",
    "pool_tells_what_it_holds",
    "pool_grows_in_chunks",
    "synchronising_gives_back",
    "either_call_frees",
    "blocks_outlive_their_pool",
    "default_pool_dies_with_contexts",
)
def pools(world: World, found: Found) -> str:
    """How pools grow, give back and end."""
    return subject(world, found, "pools")


@case(
    "A",
    8,
    "retained_handle_is_the_same",
    "own_export_can_be_imported",
    "a_mapping_keeps_memory",
    "mappings_end_whole",
    "one_unmap_for_several",
    "the_last_hold_gives_back",
    "a_dead_handle_is_refused",
)
def handles(world: World, found: Found) -> str:
    """What keeps physical memory alive."""
    return subject(world, found, "vmm")


@case(
    "A",
    8,
    "taken_at_launch",
    "in_pages_of_2_mib",
    "no_more_than_the_pages",
    "nodes_can_be_read",
    "addresses_are_used_again",
    "a_settled_launch_adds_nothing",
    "one_stream_shares_pages",
    "two_streams_take_twice_at_most",
    "destroying_keeps_it",
    "trimming_gives_back",
    "left_allocations_stay",
)
def graph_memory(world: World, found: Found) -> str:
    """When the driver takes graph memory, who shares it, and when it comes back."""
    return subject(world, found, "graphs")


@case(
    "A",
    8,
    "primary_has_one_handle",
    "state_tells_who_is_left",
    "memory_dies_with_its_context",
    "reset_ends_it",
    "handles_outlive_contexts",
    "green_contexts_hold_the_primary",
)
def contexts(world: World, found: Found) -> str:
    """Handles and lives of contexts."""
    return subject(world, found, "contexts")


@case(
    "A",
    8,
    "a_stream_tells_its_context",
    "another_thread_may_ask",
    "work_outlives_its_stream",
    "legacy_waits_for_per_thread",
    "the_shared_default_stream_tells",
    "events_can_be_asked_by_any_thread",
)
def streams(world: World, found: Found) -> str:
    """Who may ask whether work is done."""
    return subject(world, found, "streams")


@case(
    "A",
    8,
    "pages_can_move",
    "a_pitch_of_512_is_enough",
    "advice_is_taken",
    "a_prefetch_is_taken",
    "it_cannot_be_shared",
    "its_range_is_known",
    "cuda_13_has_managed_pools",
)
def managed_memory(world: World, found: Found) -> str:
    """What managed memory can do; 8 MiB of it."""
    return subject(world, found, "managed")


@case("A", 8, "limits_can_be_read", "never_more_than_read")
def context_limits(world: World, found: Found) -> str:
    """Heap and printf buffer: what the driver makes of what it is asked."""
    return subject(world, found, "limits")


@case("A", 10, "arrays_can_be_made", "charge_covers_arrays", "empty_arrays_take_nothing")
def array_sizes(world: World, found: Found) -> str:
    """Arrays take no more than the library's formula says."""
    return subject(world, found, "arrays")


@case("A", 8, "a_binding_keeps_memory")
def multicast(world: World, found: Found) -> str:
    """Memory bound to a multicast object lives on; one GPU shows a part of it."""
    return subject(world, found, "multicast")


@case(
    "A",
    8,
    "the_table_is_known",
    "lists_of_the_library",
    "uuids_agree",
    "a_list_tells_its_number",
    "starts_are_counted",
    "handles_stay",
)
def nvml_table(world: World, found: Found) -> str:
    """The private table of NVML that nvidia-smi reads is the one that the library knows."""
    plain = world.run(world.plain(), "table.py", prefix="plain ")
    under = world.run(world.limited(), "table.py", prefix="limited ")
    grown = whole(plain, "bytes") >= 1904
    found.check(
        "the_table_is_known",
        plain["code"] == 0 and grown and plain["lists"] and plain["branch"] in (525, *range(535, 581)),
        {name: plain[name] for name in ("bytes", "branch", "lists")},
    )
    found.check(
        "lists_of_the_library",
        under["own"] is True and under["bytes"] == plain["bytes"],
        {name: under[name] for name in ("bytes", "own", "places")},
    )
    asked, count = plain["number_alone"]
    found.check("a_list_tells_its_number", asked in (0, 7) and count >= 1, [asked, count])
    found.check(
        "starts_are_counted", plain["one_end_of_two_starts"] == [0, 0], plain["one_end_of_two_starts"]
    )
    found.check("handles_stay", len(set(plain["same_handle"])) == 1, plain["same_handle"])
    found.check("uuids_agree", len(set(plain["uuids"])) == 1, plain["uuids"])
    return f"{plain['bytes']} bytes in branch {plain['branch']}"
