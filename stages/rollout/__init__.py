"""The rollout stage: one engine a replica behind one Protocol. Importing this package imports no torch."""
