"""The journal: every event, in order, durable before anything that it caused is seen outside. See README.md."""

from broker.journal.checkpoint import Checkpoint, Contents, Place
from broker.journal.format import Entry, Position
from broker.journal.journal import QUOTA_BYTES, SEGMENT_BYTES, Journal

__all__ = ["QUOTA_BYTES", "SEGMENT_BYTES", "Checkpoint", "Contents", "Entry", "Journal", "Place", "Position"]
