"""Floor 5: elastic. Workers come and go, the training does not stop."""
