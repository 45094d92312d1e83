"""The engine for per-sample gradients. It does not depend on importance or directions."""
