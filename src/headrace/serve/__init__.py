"""The HTTP side of headrace: an API over log and views, and the page that uses it. Starts no Spark and needs none.

guard       who may come in: host, token, size of what is sent; the headers of every answer
answers     values and errors as JSON
home        the log and the views that are served
overview    everything at a glance, gathered once for all who look
feeds       a view's changes, read once for all who listen
streams     server-sent events: what is sent to one who listens
api         the routes
exposition  numbers for Prometheus
server      the socket, the token, the thread"""
