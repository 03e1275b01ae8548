"""Brings versions to the replicas: checks them on disk, orders installs, keeps and deletes. Imports no torch."""
