"""Jobs that no launcher started: the controller and the agents that workers start for themselves."""
