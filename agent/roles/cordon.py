"""Takes cards out of service and back: changes cordon.json, which a running agent sees within a second.

No agent has to run; the cards are those that one has last seen.
"""

from __future__ import annotations

from pathlib import Path

from agent.errors import UnknownGpuError
from agent.health.files import Cordon, change_cordons, read_cordons, read_report

__all__ = ["cordon", "uncordon"]


def cordon(state_dir: Path, name: str, reason: str, now: float) -> str:
    """Takes the card NAME (UUID, its beginning, or index) out of service at NOW; a line for the user."""
    uuid = _find(state_dir, name)
    reason = " ".join(reason.split())[:200]
    change_cordons(state_dir, lambda before: {**before, uuid: Cordon(reason, round(now, 3))})
    return f"{uuid} is cordoned: what runs on it goes on, new containers get other cards"


def uncordon(state_dir: Path, name: str) -> str:
    """Puts the card NAME back into service; a line for the user."""
    uuid = _find(state_dir, name)
    was = uuid in read_cordons(state_dir)
    change_cordons(state_dir, lambda before: {key: one for key, one in before.items() if key != uuid})
    return f"{uuid} is {'uncordoned' if was else 'not cordoned'}"


def _find(state_dir: Path, name: str) -> str:
    """The UUID that NAME stands for. Raises UnknownGpuError with those that there are."""
    report = read_report(state_dir)
    cards = {card.uuid: card.index for card in report.cards} if report else {}
    known = [*cards, *(uuid for uuid in read_cordons(state_dir) if uuid not in cards)]
    found = [uuid for uuid in known if name == uuid or name == str(cards.get(uuid))]
    found = found or [uuid for uuid in known if len(name) > 4 and uuid.startswith(name)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{cards.get(uuid, '-')} {uuid}" for uuid in known)
    what = "several cards begin with" if found else "this node has no card"
    raise UnknownGpuError(
        f"{what} {name!r}; " + (f"there are: {listed}" if known else "no agent has run here yet")
    )
