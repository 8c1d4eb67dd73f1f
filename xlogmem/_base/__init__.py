"""Foundations of the other modules, without knowledge of CUDA: locks, failures, labels, the index, sizes as text."""
