"""`tidemill serve` and `tidemill stop`: a run whose stages are started by somebody else."""
