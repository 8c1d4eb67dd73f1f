"""What the other modules are built of, and what knows no CUDA: locks, failures, labels, the index, sizes as text."""
