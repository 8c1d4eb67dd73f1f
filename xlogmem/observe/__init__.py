"""Views of a program's runtimes: history, statistics, snapshots, scopes, and output for NVTX and Prometheus."""
