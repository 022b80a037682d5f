"""The membership of an elastic job: from what happens to what is to be done; pure."""
