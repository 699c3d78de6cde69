"""The binlog of MySQL and MariaDB: its events, and the images of rows in them. Bytes in, values out."""
