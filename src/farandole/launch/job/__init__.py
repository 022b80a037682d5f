"""A running job: its launcher, its loop, and the controller of an elastic job."""
