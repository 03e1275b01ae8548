"""What actor-train decides, without torch, files or clocks."""
