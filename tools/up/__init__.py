"""`tidemill up`: one command that runs a whole pipeline on this machine; see README.md."""
