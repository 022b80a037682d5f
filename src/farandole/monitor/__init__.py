"""Windows on a training: its record in a folder, the live page, and what both are made from."""
