# SPDX-License-Identifier: Apache-2.0
"""A stand-in of kube-scheduler: its serial cycle, its queue, and what it says to an extender and to the API server."""

from tests.fakes.scheduler.cycle import SchedulerStandIn

__all__ = ["SchedulerStandIn"]
