"""Commands about an installation: ``check``, ``bench`` and ``horovod``."""
