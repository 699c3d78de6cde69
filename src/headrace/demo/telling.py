"""How the story is printed: plain lines anywhere, bold and colour on a terminal that wants them. Knows no log."""

from __future__ import annotations

import os
import sys
import textwrap

MINUS, PLUS = "31", "32"


class Teller:
    def __init__(self) -> None:
        self._step = 0
        self.terminal = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self.colour = self.terminal and not os.environ.get("NO_COLOR")

    def title(self, text: str) -> None:
        self._line(self._styled(text, "1"))

    def step(self, text: str) -> None:
        """What happens next."""
        self._step += 1
        self._line("")
        self._line(self._styled(f"{self._step}. {text}", "1;36"))

    def say(self, text: str) -> None:
        """What happened, and why it matters."""
        for line in textwrap.wrap(text, 100):
            self._line(f"   {line}")

    def show(self, text: str) -> None:
        """A line as it is: what to type, what was found."""
        self._line(f"     {text}")

    def tick(self, text: str) -> None:
        """How long something takes: in place on a terminal, a line elsewhere."""
        if self.terminal:
            sys.stdout.write(f"\r\x1b[K     {text}")
            sys.stdout.flush()
        else:
            self.show(text)

    def clear(self) -> None:
        """Takes the last tick off the terminal."""
        if self.terminal:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()

    def change(self, op: str, text: str) -> None:
        """A row that went or came."""
        self._line(f"   {self._styled(f'{op} {text}', MINUS if op == '-' else PLUS)}")

    def good(self, text: str) -> None:
        self._line(f"     {self._styled(text, PLUS)}")

    def bad(self, text: str) -> None:
        self._line(f"     {self._styled(text, MINUS)}")

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def _line(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
