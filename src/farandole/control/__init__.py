"""Floor 1: wires. Authenticated messages and child processes."""
