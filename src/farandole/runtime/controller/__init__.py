"""The controller's process: its socket, and the state machines behind it."""
