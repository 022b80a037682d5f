"""Floor 5: elastic. Training goes on while workers join, leave and fail."""
