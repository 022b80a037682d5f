"""Coordination: what ranks said, what follows from it, and who belongs to a generation; pure, for all processes."""
