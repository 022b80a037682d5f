"""Modules that Horovod keeps for all frameworks, as far as scripts touch them."""
