"""`tidemill keys`, and the keys of the processes on the broker's own machine."""
