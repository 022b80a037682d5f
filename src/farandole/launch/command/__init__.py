"""The commands ``run`` and ``horovodrun``."""
