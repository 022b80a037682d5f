"""Simulated steps beside the formulas of ``farandole predict``."""
