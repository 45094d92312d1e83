"""One task after the other: the loop that trains a method on a stream, and what it measures."""
