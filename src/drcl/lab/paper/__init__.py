"""The paper: its tables, figures, ablations and claims as data, the runs they need, and the verdicts."""
