"""Views in a SQLite file beside the log. Only `headrace.views.open` imports this."""
