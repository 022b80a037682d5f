"""Floor 8: launch. One command becomes a job of many workers, and the job an exit code."""
