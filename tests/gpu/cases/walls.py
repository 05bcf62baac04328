# SPDX-License-Identifier: Apache-2.0
"""A: the driver's own memory limits of cgroups, which branch 615 brings. Needs root and cgroups that may be written.

The rules of the two backends are those of NVIDIA's sources. A machine has one of them; the case of the other is
missing there.
"""

from __future__ import annotations

from tests.gpu.cases.assumptions import ask
from tests.gpu.world import Found, World, case


@case(
    "A",
    60,
    "set_is_read_back",
    "backend_is_as_the_root_says",
    "contexts_count",
    "little_more_than_nvml_counts",
    "cu_mem_get_info_shows_the_limit",
    "beyond_is_out_of_memory",
    "managed_memory_does_not_count",
    "cu_init_survives_0",
    "no_context_at_0",
    "persistence_keeps_limits",
)
def driver_limits(world: World, found: Found) -> str:
    """What the driver's own limits do whichever backend keeps them."""
    got = ask(world, found, "walls.py", "both")
    return f"{got['backend']}; {got['per_cent_more']} per cent more than NVML counts"


@case(
    "A",
    60,
    "an_ancestor_binds",
    "the_nearest_alone_binds",
    "max_hides_the_ancestor",
    "below_use_is_refused",
    "earlier_memory_never_counts",
    "the_controller_is_needed",
)
def driver_limits_misc(world: World, found: Found) -> str:
    """The rules of the driver's own map."""
    got = ask(world, found, "walls.py", "misc")
    return "of {1} new groups {0} had a dead one's limit".format(*got["new_groups_with_a_dead_ones_limit"])


@case("A", 60, "limits_nest", "below_use_is_taken", "earlier_memory_counts", "the_files_are_needed")
def driver_limits_dmem(world: World, found: Found) -> str:
    """The rules of the kernel's controller."""
    return str(ask(world, found, "walls.py", "dmem")["backend"])
