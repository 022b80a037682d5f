"""Running jobs, as the tests of the launcher have them."""

from tests.launch.conftest import job

__all__ = ["job"]
