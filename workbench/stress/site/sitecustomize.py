"""Run by every interpreter that is started under stress: stalls, priorities, and stacks on request."""

import os

if os.environ.get("STRESS_STALLS"):
    from workbench.stress.process import prepare

    prepare()
