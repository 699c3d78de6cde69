"""Kafka as the log, on a real broker (tests/broker.py)."""
