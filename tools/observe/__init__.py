"""`tidemill top`, `doctor` and `dead`: looking at a run from outside; see README.md."""
