"""MySQL and MariaDB as sources of changes: their binlog, in which rows are."""
