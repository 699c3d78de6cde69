"""A record that a program cannot take stops nothing: it becomes a dead letter, with the reason, and can be replayed
when the program, or the record, has been put right.

Prints:
    5 readings, average 20.0
    dead: 'n/a' of device 0, because CAST_INVALID_INPUT
    put right and appended again: 6 readings, average 20.0"""

import re

import headrace as hr

with hr.App("sensors", home=":temp:") as app:
    readings = app.topic("readings", "device int, celsius string", key="device")
    (
        app.stream(readings)
        .transform(lambda df: df.selectExpr("cast(celsius as double) as celsius", *hr.META))
        .agg(readings=hr.count(), average=hr.avg("celsius"))
        .to_view("temperature")
    )

    def told() -> str:
        app.drain()  # `headrace run` does the same with what there is, and goes on
        found = app.query("select readings, average from temperature")
        return "{readings} readings, average {average}".format(**found.to_pylist()[0])

    readings.append([{"device": n, "celsius": "20.0" if n else "n/a"} for n in range(6)])
    print(told())
    for letter in app.log.dead_letters():
        why = re.search(r"\[(\w+)", letter.error)
        print(f"dead: {letter.value['celsius']!r} of device {letter.value['device']}, because {why and why[1]}")
        readings.append({**letter.value, "celsius": "20.0"})  # letter.replay() appends it as it is
        letter.drop()
    print(f"put right and appended again: {told()}")
