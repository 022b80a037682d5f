"""Word for a check to which a rank has not come."""

from __future__ import annotations

NOT_RUN = "an earlier check failed, so this did not run"
