"""A web service: commands in, queries out. A command is decided on the account's events; its answer has the position
that it was written to, in a header. A query with that header waits until the view has read so far: a client reads its
own writes, whichever process answers.

Prints:
    POST /accounts/ann/deposit: 200, balance 100
    POST /accounts/ann/withdraw: 409, ann has 100, not 500
    the same deposit again: 200, balance 100
    POST /accounts/ann/withdraw: 200, balance 70
    GET /balances?least=50: ann 70"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Response
from fastapi.testclient import TestClient

import headrace as hr
from headrace import sourcing as es

POSITION = "Headrace-Position"


@dataclass(frozen=True)
class Deposited:
    euros: int


@dataclass(frozen=True)
class Withdrawn:
    euros: int


@dataclass(frozen=True)
class Deposit:
    euros: int


@dataclass(frozen=True)
class Withdraw:
    euros: int


def decide(euros: int, command: Deposit | Withdraw, key: str) -> list:
    if isinstance(command, Deposit):
        return [Deposited(command.euros)]
    if command.euros > euros:
        raise es.Rejected(f"{key} has {euros}, not {command.euros}")
    return [Withdrawn(command.euros)]


def evolve(euros: int, event: Deposited | Withdrawn) -> int:
    return euros + event.euros if isinstance(event, Deposited) else euros - event.euros


app = hr.App("bank", home=":temp:")
accounts = es.Entities(app.log, "accounts", events=[Deposited, Withdrawn], evolve=evolve, decide=decide, initial=0)
app.stream(accounts.topic).transform(
    lambda df: df.selectExpr("entity as owner", "coalesce(Deposited.euros, -Withdrawn.euros) as euros", *hr.META)
).group_by("owner").agg(euros=hr.sum("euros")).to_view("balances")

web = FastAPI()


def handle(owner: str, command: Deposit | Withdraw, id: str | None, response: Response) -> dict[str, int]:
    try:
        done = accounts.handle(owner, command, id=id)
    except es.Rejected as error:
        raise HTTPException(409, str(error)) from None
    response.headers[POSITION] = str(done.position)
    return {"balance": done.state}


Key = Annotated[str | None, Header()]


@web.post("/accounts/{owner}/deposit")
def deposit(owner: str, command: Deposit, response: Response, idempotency_key: Key = None) -> dict[str, int]:
    return handle(owner, command, idempotency_key, response)


@web.post("/accounts/{owner}/withdraw")
def withdraw(owner: str, command: Withdraw, response: Response, idempotency_key: Key = None) -> dict[str, int]:
    return handle(owner, command, idempotency_key, response)


@web.get("/balances")
def balances(least: int = 0, headrace_position: Key = None) -> list[dict]:
    position = None if headrace_position is None else hr.Position.parse(headrace_position)
    sql = "select owner, euros from balances where euros >= ? order by owner"
    return app.query(sql, (least,), wait_for=position, timeout="30 seconds").to_pylist()


with app, TestClient(web) as client:  # in a service: uvicorn serves `web`, and headrace run the app
    app.start()

    def post(what: str, euros: int, **headers: str):
        return client.post(f"/accounts/ann/{what}", json={"euros": euros}, headers=headers)

    first = post("deposit", 100, **{"Idempotency-Key": "d1"})
    print(f"POST /accounts/ann/deposit: {first.status_code}, balance {first.json()['balance']}")
    refused = post("withdraw", 500)
    print(f"POST /accounts/ann/withdraw: {refused.status_code}, {refused.json()['detail']}")
    again = post("deposit", 100, **{"Idempotency-Key": "d1"})  # the answer was lost on the way
    print(f"the same deposit again: {again.status_code}, balance {again.json()['balance']}")
    last = post("withdraw", 30)
    print(f"POST /accounts/ann/withdraw: {last.status_code}, balance {last.json()['balance']}")
    found = client.get("/balances", params={"least": 50}, headers={POSITION: last.headers[POSITION]}).json()
    rows = [f"{row['owner']} {row['euros']}" for row in found]
    print(f"GET /balances?least=50: {', '.join(rows)}")
    app.stop()
