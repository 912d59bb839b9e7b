"""Training on records: one loop for a CPU, GPUs, several workers and TPUs."""
