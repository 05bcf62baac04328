# SPDX-License-Identifier: Apache-2.0
"""Who looks after annotations that take more than a ResourceQuota has counted: the cluster's policy, or nobody.

No role can see whether the policy is there, so a setting says it, and without it such a text is a mistake.
"""

from enum import Enum

__all__ = ["AnnotationRights", "annotation_rights"]


class AnnotationRights(Enum):
    """What becomes of annotations that need a label of their pod's Namespace.

    Attributes:
        REFUSE: They are mistakes: nothing has compared them with the label.
        CHECKED: They count: the cluster's policy has refused those without the label.
    """

    REFUSE = "refuse"
    CHECKED = "checked"


def annotation_rights(text: str) -> AnnotationRights:
    """The value of the setting. Raises ValueError with a sentence for the user."""
    try:
        return AnnotationRights(text)
    except ValueError:
        raise ValueError("must be one of refuse, checked") from None
