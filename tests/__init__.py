"""Tests, named after the promise they check; the tree mirrors the house."""
