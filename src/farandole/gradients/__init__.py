"""Floor 6: reduction of gradients, for any framework."""
