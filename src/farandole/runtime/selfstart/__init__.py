"""Jobs without a launcher: workers themselves start the controller and the agents."""
