"""The log by itself: typed topics in a directory, a consumer group that commits how far it is, and going back.

No broker, no JVM. The directory is a temporary one here; any number of processes may share a real one.

Prints:
    3 records, the first in partition 0 at offset 0
    billing has read ann, bob, cid; lag 0
    again from the start: ann, bob, cid"""

import tempfile

import headrace as hr

with tempfile.TemporaryDirectory() as home, hr.open_log(home) as log:
    clicks = log.create_topic("clicks", "user string, page string, at timestamp", key="user", event_time="at")
    done = clicks.append([{"user": user, "page": "/", "at": "2026-01-01T09:00:05Z"} for user in ("ann", "bob", "cid")])
    print(f"{len(done.ranges[0])} records, the first in partition 0 at offset {done.ranges[0].start}")

    billing = clicks.group("billing")
    with billing.join() as member:
        users = [record.value["user"] for record in member.poll()]
        member.commit()
    print(f"billing has read {', '.join(users)}; lag {sum(lag.records for lag in billing.lag().values())}")

    billing.rewind("earliest")  # records stay: any group may read them again
    with billing.join() as member:
        print(f"again from the start: {', '.join(record.value['user'] for record in member.poll())}")
