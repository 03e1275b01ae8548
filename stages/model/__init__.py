"""The lean decoder that rollout, reference and actor-train share. Importing this package imports no torch."""
