"""Fixtures of several rooms."""

from tests.support.compat.site_in_process import horovod_site
from tests.support.launch.running import job

__all__ = ["horovod_site", "job"]
