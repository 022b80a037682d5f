"""Rows and phases of the table of faults for a training that commits every few batches: with JAX, and with Keras."""

from __future__ import annotations

from workbench.survival.cases import FaultCase, again, controller, controller_again, kill, newcomer, notice, other
from workbench.survival.cases_inside import below_and_back, join_and_leave, more
from workbench.survival.fault_injection import ScheduledFault

TORN = "SIGKILL of rank 0, 1: reduced, and not applied"

COUNTED = (
    kill("reduce", 3, quick=True),
    kill("idle", 3),
    kill("loading", 1),
    kill("forward", 0),
    kill("reduce", 0),
    kill("reduced", 2, name="SIGKILL of rank 2: reduced, and not applied"),
    kill("reduced", 0, 1, name=TORN, quick=True),
    kill("applied", 0),
    kill("applied", 1, 2),
    kill("commit", 3, quick=True),
    kill("commit", 0, 1),
    kill("epoch end", 1),
    kill("reduce", 0, 1, 2, name="SIGKILL of all but rank 3 (below --min-np)"),
    controller("idle"),
    controller("reduce"),
    again("reform", 1),
    again("connect", 0),
    again("agree", 0),
    again("transfer", 0),
    again("synced", 1),
    newcomer("a newcomer is killed while it receives the state", "receive", "kill"),
    newcomer("a newcomer's script raises before it is ready", "building", "raise"),
    other("raise", "forward", 1, "a Python exception"),
    other("segv", "forward", 0, "SIGSEGV"),
    other("stop", "reduce", 1, "SIGSTOP"),
    other("hang", "forward", 0, "a hang with the GIL held"),
    controller_again("agree"),
    FaultCase("SIGTERM of rank 1", "any", done=notice, planned=True, quick=True),
    FaultCase("a slot is added and removed in one window", "any", done=join_and_leave, harmless=True),
    FaultCase("fewer slots than --min-np, then all again", "any", done=below_and_back, planned=True),
    more(2),
)
"""Faults on one host with four slots."""

LAST = (FaultCase("exit 0 of rank 1 early", "forward", [ScheduledFault("forward", 1, "exit")]),)
"""After this fault no worker is started any more."""
