"""Operators in which records of several inputs meet, one file each, and what they have in common."""
