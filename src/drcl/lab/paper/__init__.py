"""The paper: its tables, figures, ablations and claims as data, the runs they take, and what runs say about them."""
