"""The world: the broker's core and policies under a virtual clock, with stages that are laws instead of programs."""
