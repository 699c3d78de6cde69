"""Patterns: the operator that matches them, and what readers see of matches."""
