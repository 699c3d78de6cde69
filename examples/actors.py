"""Message passing between entities: an actor's mailbox is a queue by key, its state a fold of its events. Each actor
handles one message at a time, in order; different actors, in different processes, side by side.

What this guarantees: a message that was sent is handled, in its actor's order, also after a crash; what comes of it is
there once, its events as well as the messages that it sends in turn. A message that fails again and again becomes a
dead letter, and the next one follows. What it does not have, and actor frameworks do: actors in memory that answer
within microseconds, a place for each actor to live, supervision trees, and replies to a caller that waits (hr.call does
that).

Prints:
    ping 1 to ann, ping 1 to bob, ping 2 to ann, ping 2 to bob
    ann has heard [1, 2]
    bob has heard [1, 2]
    redelivered: ann has still heard [1, 2]"""

import tempfile
from dataclasses import dataclass

import headrace as hr
from headrace import sourcing as es


@dataclass(frozen=True)
class Heard:
    number: int


@dataclass(frozen=True)
class Ping:
    number: int


@dataclass(frozen=True)
class Message:
    """What is in the mailbox."""

    actor: str
    number: int


def decide(_heard, message, _actor):
    return [Heard(message.number)]


def evolve(heard: list[int], event) -> list[int]:
    return [*heard, event.number]


def react(_sent, event, actor):
    """A player answers what it has heard: bob with the same number, ann with the next one, up to 2."""
    match actor, event:
        case "bob", Heard(number) if number < 2:
            return [es.Send(Message("ann", number + 1))]
        case "ann", Heard(number):
            return [es.Send(Message("bob", number))]
    return []


with tempfile.TemporaryDirectory() as home, hr.open_log(home) as log:
    mailbox = log.create_topic("mailbox", "actor string, number bigint", key="actor", partitions=4)
    actors = es.Entities(log, "actors", events=[Heard], evolve=evolve, decide=decide, initial=list[int]())
    sending = es.ProcessManager(
        log,
        "sending",
        events=[Heard],
        evolve=lambda sent, _: sent + 1,
        react=react,
        initial=0,
        commands={Message: mailbox},
        inputs={actors: lambda _, actor: actor},
    )
    received = []

    def receive(queue):
        """Any number of processes may do this: no two of them have messages of one actor at a time."""
        while messages := queue.receive(10):
            for message in messages:
                with message:
                    id = f"mailbox/{message.partition}/{message.offset}"  # a message that comes again is known by it
                    done = actors.handle(message.key, Ping(message.value["number"]), id=id)
                    if not done.duplicate:
                        received.append(f"ping {message.value['number']} to {message.key}")
            sending.drain()  # in a service: app.supervise(sending), and headrace run

    mailbox.append({"actor": "ann", "number": 1})
    receive(mailbox.queue("actors", order="key"))
    print(", ".join(received))
    for actor in "ann", "bob":
        print(f"{actor} has heard {actors.load(actor).state}")
    mailbox.queue("actors").rewind("earliest")  # as if no message had been acknowledged
    receive(mailbox.queue("actors"))
    print(f"redelivered: ann has still heard {actors.load('ann').state}")
