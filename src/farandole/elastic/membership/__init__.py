"""Membership of an elastic job: a pure state machine from events to actions."""
