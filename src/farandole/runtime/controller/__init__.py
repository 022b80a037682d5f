"""Process of the controller: its socket, and the state machines behind it."""
