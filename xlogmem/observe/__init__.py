"""What a program sees of its runtimes: history, statistics, snapshots, scopes, and what goes to NVTX and Prometheus."""
