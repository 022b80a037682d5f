"""Commands for an installation: ``check``, ``bench`` and ``horovod``."""
