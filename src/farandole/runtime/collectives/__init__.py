"""Collectives as frameworks call them: verbs, objects, and the planned lane."""
