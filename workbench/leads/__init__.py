"""Model of successive leaders: every interleaving of the halves of a run that may each have a leader."""
