"""Floor 3: engines move the bytes of collectives."""
