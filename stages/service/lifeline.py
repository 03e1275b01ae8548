"""The line between a stage and its host, under the name that stages know.

`schemas.lifeline` holds it, since the broker needs it too.
"""

from schemas.lifeline import PARENT, child_environment, die_with_parent

__all__ = ["PARENT", "child_environment", "die_with_parent"]
