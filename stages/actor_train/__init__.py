"""The trainer's stage: step plans in, new versions out."""
