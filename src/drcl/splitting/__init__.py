"""One step: how a proposal comes about (plasticity), what the anchor lets through (stability), and fast kernels."""
