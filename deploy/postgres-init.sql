-- Run once by the image of Postgres, on an empty volume: a user who owns one schema, and nothing else. Nobody is the
-- superuser over the network: it has no password then, and only who is in the container needs none.
\set given `cat /run/secrets/postgres-password`
CREATE ROLE shop LOGIN PASSWORD :'given';
CREATE SCHEMA headrace AUTHORIZATION shop;
ALTER ROLE CURRENT_USER PASSWORD NULL;
