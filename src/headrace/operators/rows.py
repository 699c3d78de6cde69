"""Rows that operators pass on and can take back: the columns that tell them apart, and when they are final."""

ID, FINAL_AT = "/id", "/final_at"
