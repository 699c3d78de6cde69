"""Routes of the HTTP API, a module for each part of a home. `api` adds them to the others."""
