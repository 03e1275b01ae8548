"""Chaos: real training whose processes are killed and frozen by chance, and what must hold of it afterwards."""
