"""Kafka as the log: topics, groups and transactions of a Kafka cluster, with headrace's schemas beside them."""
