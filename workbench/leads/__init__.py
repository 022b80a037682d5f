"""Model of leads that succeed each other: every interleaving of halves of a run that may each have a lead."""
