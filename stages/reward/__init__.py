"""The reward stage: judges finished episodes with a user's verifier; see README.md."""
