"""See `broker.lifeline`: stages and hosts use the same line."""

from broker.lifeline import EXIT_ORPHANED, PARENT, child_environment, die_with_parent

__all__ = ["EXIT_ORPHANED", "PARENT", "child_environment", "die_with_parent"]
