"""What GPUs are cut into, and the gate through which that changes."""
