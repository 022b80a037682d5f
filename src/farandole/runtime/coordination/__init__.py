"""Coordination: state machines of negotiation, stalls, deadlocks and membership; pure, for all kinds of process."""
