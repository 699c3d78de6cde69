"""Media monitoring: queries are stored, and articles flow past them. Each customer has queries of its own; a hit says
which query found the article, in which version, and where the words are.

Prints:
    acme: heating found 'A heat pump for every house' (title 2..11)
    umbrella: storage found 'Batteries: prices fall' (title 0..9)
    acme: heating (0:2) found 'Solar roofs sell out' (title 0..5)
    what acme's query would have found in all its articles: 2 of 2"""

import json

import headrace as hr

ARTICLES = [
    ("acme", "A heat pump for every house", "It hums in the cellar.", 0.9),
    ("umbrella", "Batteries: prices fall", "Who buys a battery, or batteries, now?", 0.8),
    ("umbrella", "A heat pump in a museum", "Nobody at Umbrella asked for it.", 0.7),
]

with hr.App("media", home=":temp:") as app:
    articles = app.topic("articles", "customer string, title string, body string, rank double")
    alerts = app.queries("alerts", tenant="customer")
    app.stream(articles).search(alerts, text=["title", "body"]).to_topic("hits")

    alerts.put("heating", '"heat pump" OR boiler*', tenant="acme")
    alerts.put("storage", "title:batter* AND rank >= 0.5 AND NOT tesla", tenant="umbrella")
    names = ("customer", "title", "body", "rank")
    articles.append([dict(zip(names, row, strict=True)) for row in ARTICLES])

    alerts.put("heating", '"heat pump" OR solar', tenant="acme")  # from now on
    articles.append({"customer": "acme", "title": "Solar roofs sell out", "body": None, "rank": 0.2})
    app.drain()

    for number, record in enumerate(app.log.topic("hits").records()):
        hit = record.value
        spans = [
            f"{field} {start}..{stop}"
            for field, found in json.loads(hit["highlights"]).items()
            for start, stop in found
        ]
        version = f" ({hit['version']})" if number == 2 else ""
        print(f"{hit['customer']}: {hit['query']}{version} found {hit['title']!r} ({', '.join(spans)})")
    told = alerts.explain("heating", tenant="acme")
    print(f"what acme's query would have found in all its articles: {told.hits} of {told.records}")
