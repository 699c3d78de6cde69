"""Every user's timeline: the posts of those whom the user follows. It is a product of two tables, posts · follows. The
derivative of that product keeps it up to date: if posts change by Δp and follows by Δf, the timeline changes by

    Δp · f  +  p · Δf  +  Δp · Δf

A new post meets everyone who follows its author, and no other row is touched. A new follow meets all posts of the
author. Who unfollows sees them no more: the same rule, with a minus.

Prints:
    bob follows ann, cid follows ann and dan:
    + bob: ann says hello
    + cid: ann says hello
    + cid: dan says morning
    ann posts again, Δp · f:
    + bob: ann says again
    + cid: ann says again
    bob follows dan, p · Δf:
    + bob: dan says morning
    cid unfollows ann:
    - cid: ann says again
    - cid: ann says hello
    dan deletes a post:
    - bob: dan says morning
    - cid: dan says morning
    bob's timeline: ann says hello, ann says again"""

import headrace as hr

with hr.App("timelines", home=":temp:") as app:
    posts = app.table("posts", "id int, author string, text string", key="id")
    follows = app.table("follows", "user string, author string", key=("user", "author"))
    timeline = follows.join(posts, on="author").to_view("timeline")
    shown: set[str] = set()

    def told(what: str) -> None:
        """Prints what that did to the timelines."""
        app.drain()
        rows = {f"{row['user']}: {row['author']} says {row['text']}" for row in timeline.to_arrow().to_pylist()}
        print(f"{what}:", *(f"+ {each}" for each in sorted(rows - shown)), sep="\n")
        print(*(f"- {each}\n" for each in sorted(shown - rows)), sep="", end="")
        shown.symmetric_difference_update(rows ^ shown)

    posts.upsert([{"id": 1, "author": "ann", "text": "hello"}, {"id": 2, "author": "dan", "text": "morning"}])
    follows.upsert([{"user": "bob", "author": "ann"}, {"user": "cid", "author": "ann"}])
    follows.upsert({"user": "cid", "author": "dan"})
    told("bob follows ann, cid follows ann and dan")

    posts.upsert({"id": 3, "author": "ann", "text": "again"})
    told("ann posts again, Δp · f")

    follows.upsert({"user": "bob", "author": "dan"})
    told("bob follows dan, p · Δf")

    follows.delete(("cid", "ann"))
    told("cid unfollows ann")

    posts.delete(2)
    told("dan deletes a post")

    rows = app.query("select author, text from timeline where user = 'bob' order by id").to_pylist()
    mine = [f"{row['author']} says {row['text']}" for row in rows]
    print(f"bob's timeline: {', '.join(mine)}")
