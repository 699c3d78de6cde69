"""Change capture: what is done to the tables of another database, as topics. `change` has the envelope that every
source gives, `journal` what is written to the log and in which transaction, `postgres/` and `sqlite/` the sources."""
