"""The laboratory: streams of tasks, networks, methods, runs and reports. It is built on the library."""
