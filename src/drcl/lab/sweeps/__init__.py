"""Many runs: plans, worker processes, a cluster, and choosing strengths."""
