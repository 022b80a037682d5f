"""A worker of an elastic job: its state, its samples, and the vote on each step."""
