"""Changes as Debezium's envelopes, written beside the topics of tables for those who read them already."""
