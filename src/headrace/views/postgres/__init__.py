"""Views in a Postgres database, one schema for each store. Only `headrace.views.open` imports this."""
