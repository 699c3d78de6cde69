"""A queue on a topic: each message to one worker, acknowledged or delivered again, and a dead letter in the end.

Prints:
    ann: charged 12
    bob: refused (delivery 1)
    cid: charged 2
    bob: refused (delivery 2)
    dead: bob, after 2 deliveries: a negative amount
    bob: charged 1"""

import tempfile

import headrace as hr


def charge(order: dict) -> int:
    if order["euros"] < 0:
        raise ValueError("a negative amount")
    return order["euros"]


def work(queue) -> None:
    """Until nothing is left: what fails comes again, after all that was ready."""
    while messages := queue.receive(10):
        for message in messages:
            try:
                euros = charge(message.value)
            except ValueError as error:
                print(f"{message.value['customer']}: refused (delivery {message.deliveries})")
                message.nack(str(error))
            else:
                print(f"{message.value['customer']}: charged {euros}")
                message.ack()


with tempfile.TemporaryDirectory() as home, hr.open_log(home) as log:
    orders = log.create_topic("orders", "customer string, euros int", key="customer")
    orders.append([{"customer": "ann", "euros": 12}, {"customer": "bob", "euros": -1}, {"customer": "cid", "euros": 2}])
    work(orders.queue("billing", max_deliveries=2))
    for letter in log.dead_letters():
        print(f"dead: {letter.value['customer']}, after {letter.deliveries} deliveries: {letter.error}")
        orders.append({**letter.value, "euros": 1})  # put right by hand
        letter.drop()
    work(orders.queue("billing"))
