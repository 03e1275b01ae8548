"""What to ask next and from whom, and how changed bytes are written down: pure."""
