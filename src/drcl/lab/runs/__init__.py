"""A run and its directory: what decides it, carrying it out, writing, reading, resuming."""
