"""Recorded runs, played again: `tidemill replay`, `tidemill whatif`. See README.md."""
