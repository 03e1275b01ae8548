"""The reference stage: log-probs of samples under the frozen starting model."""
