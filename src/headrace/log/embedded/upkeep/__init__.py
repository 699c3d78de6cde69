"""What is done to records that are there: deleting, compacting, sealing, erasing, mending, checking."""
