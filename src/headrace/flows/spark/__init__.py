"""Spark itself: its session, its Java, its workers, and the files they leave."""
