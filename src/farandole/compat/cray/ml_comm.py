"""Module name that programs for Cray's plugin import; see ``farandole.compat.ml_comm``."""

from farandole.compat.ml_comm import *  # noqa: F403
