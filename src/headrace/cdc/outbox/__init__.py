"""The outbox pattern: an application writes an event as a row, in the transaction of what it does; the capture of that
table routes the rows into topics. Needs SQL alone, no right to replicate."""
