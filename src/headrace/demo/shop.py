"""Page views of a small web shop, the same in every run. Pure but for the time, which is an argument."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

SCHEMA = "user string, page string, ms int, at timestamp"
PAGES = ("/", "/", "/", "/search", "/search", "/kettle", "/teapot", "/cups", "/basket", "/checkout")
USERS = 200


def page_views(count: int, until: datetime, seed: int) -> list[dict[str, Any]]:
    """`count` page views, the last of them at `until`, ten milliseconds apart."""
    chance = random.Random(seed)
    return [
        {
            "user": f"user-{chance.randrange(USERS):03}",
            "page": chance.choice(PAGES),
            "ms": int(chance.lognormvariate(3.5, 0.6)),
            "at": until - timedelta(milliseconds=10 * (count - 1 - i)),
        }
        for i in range(count)
    ]
