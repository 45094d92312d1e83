"""The laboratory: streams of tasks, networks, methods, runs and reports. It stands on the library."""
