"""What Horovod keeps for all frameworks, as far as scripts touch it."""
