"""Stateful operators, one file each: pure, Arrow in and out, time as an argument."""
