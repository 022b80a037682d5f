"""Floor 4: the runtime. It decides what happens when, and lets engines move the bytes."""
