"""Simulated steps, compared with the formulas of ``farandole predict``."""
