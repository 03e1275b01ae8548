"""Recorded runs, looked into: `tidemill inspect`, `tidemill story`, `tidemill cut`. See README.md."""
