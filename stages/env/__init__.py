"""The env stage: plays episodes of a user's environment; see README.md."""
