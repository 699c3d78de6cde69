"""How the story begins: its first line is there before Arrow is loaded. Owns nothing."""

from __future__ import annotations


def run(*, live: bool = False) -> int:
    """Tells the story; 0 when everything came out as promised. `live`: goes on with more visitors, until Ctrl-C."""
    from headrace.demo.telling import Teller
    from headrace.errors import JavaMissing
    from headrace.flows.spark import java

    if why := java.missing():  # before the first line, not in the midst of it
        raise JavaMissing(why=why)
    teller = Teller()
    teller.title("headrace: streams into views that are exactly right, shown on a small web shop")
    from headrace.demo.story import tell  # here, behind the first line: it loads Arrow

    return tell(teller, live=live)
