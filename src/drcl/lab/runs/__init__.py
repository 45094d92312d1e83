"""A run and its directory: its configuration, executing, writing, reading, resuming."""
