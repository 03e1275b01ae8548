"""The blob channel: files by digest between hosts, cached on each. Serves all stages, imports none of them, and no torch."""
