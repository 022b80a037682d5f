"""Helpers of Horovod's launcher, as far as scripts use them."""
