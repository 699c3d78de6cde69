"""Views: results and state of flows in plain tables, committed beside the offsets they were made from."""
