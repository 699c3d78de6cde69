"""A web shop as a headrace program: page views, purchases, messages, invoices and requests in, four views and a table
out. `headrace run` takes this file as it is.

Owns topics and flows. Does not know who writes the records: in the demo it is `traffic`."""

import headrace as hr

app = hr.App("shop")

# A browser says by its own clock when a page was opened (`occurred`) and when it told us (`sent`); the shop's server
# adds by its clock when it heard of it (`received`). Purchases have `cents`, page views have the id of a `view`.
visits = app.topic(
    "visits",
    "city string, device string, page string, view string, cents bigint, "
    "occurred timestamp, sent timestamp, received timestamp",
    key="city",
    event_time="received",
    partitions=3,
)


def visitors_only(df):  # type: ignore[no-untyped-def]
    """Your PySpark, unchanged. `at` is by the shop's clock, however wrong the device's is."""
    at = hr.corrected_time("occurred", "sent", "received")
    return df.where("page <> '/health'").withColumn("at", at)


pages_per_minute = (
    app.stream(visits)
    .transform(visitors_only)
    .window(
        hr.tumbling("1 minute"),
        time="at",
        grace="10 seconds",
        late=hr.correct(within="10 minutes"),
        idle="3 seconds",
        absent="3 seconds",
    )
    .group_by("page")
    .agg(
        views=hr.count_distinct("view"),  # a browser that got no answer sends again: counted once
        orders=hr.count(where="cents is not null"),
        cents=hr.sum("cents"),
    )
    .to_view("pages_per_minute")
)

# What customers write to the shop: messages of a customer that follow each other closely are one chat.
messages = app.topic("messages", "customer string, at timestamp", key="customer", event_time="at")
chats = (
    app.stream(messages)
    .window(hr.session("30 seconds"), late=hr.correct(within="10 minutes"))
    .group_by("customer")
    .agg(messages=hr.count())
    .to_view("chats")
)

# Each invoice gets the tax rate that was valid at its time. When the office tells of a rate too late, it is corrected.
taxes = app.table(
    "taxes", "country string, percent int, since timestamp", key="country", event_time="since", history="versions"
)
invoices = app.topic("invoices", "number int, country string, cents bigint, at timestamp", event_time="at")
taxed_invoices = (
    app.stream(invoices).enrich(taxes, on="country", as_of="at", columns=["percent"]).to_view("taxed_invoices")
)

# What the shop's servers answered: the address without what follows the question mark, and what took too long.
requests = app.topic("requests", "path string, ms bigint, at timestamp", event_time="at", partitions=2)


def with_page(df):  # type: ignore[no-untyped-def]
    """Spark has something to compute here, so every batch is a Spark job."""
    return df.selectExpr("*", "substring_index(path, '?', 1) as page", "ms > 800 as slow")


requests_per_minute = (
    app.stream(requests)
    .transform(with_page)
    .window(hr.tumbling("1 minute"), grace="10 seconds")
    .group_by("page")
    .agg(requests=hr.count(), slow=hr.count(where="slow"), slowest=hr.max("ms"))
    .to_view("requests_per_minute")
)
