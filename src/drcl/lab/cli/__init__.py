"""The command line: commands, and what they show while they work."""
