"""Chat: messages in order per conversation, a bot that answers questions, and reminders that come later.

python examples/chat/main.py
python examples/chat/main.py --namesrv 127.0.0.1:9876    # uses a running broker (`metaq serve`)
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta

import metaq
from metaq.testing import LocalMetaq

LINES, QUESTIONS, REMINDERS = "ChatLines", "ChatQuestions", "ChatReminders"


class Room:
    """Shows conversations. Members of the group divide the conversations among them."""

    def __init__(self, client: metaq.Client) -> None:
        self.seen: defaultdict[str, list[str]] = defaultdict(list)
        # All lines of a conversation are in one queue; `ordered` handles a queue one line after the other.
        client.consumer(LINES, group="chat-room", start="earliest", ordered=True)(self._show)
        client.consumer(REMINDERS, group="chat-room-reminders", start="earliest")(self._show)

    def _show(self, message: metaq.Message) -> None:
        line = json.loads(message.body)
        self.seen[line["to"]].append(line["text"])
        print(f"[{line['to']}] {line['by']}: {line['text']}", flush=True)


class Bot:
    """Answers questions that people wait for."""

    def __init__(self, client: metaq.Client) -> None:
        self._producer = client.producer("chat-bot")
        self._producer.start()
        client.consumer(QUESTIONS, group="chat-bot", start="earliest")(self._answer)

    def _answer(self, question: metaq.Message) -> None:
        words = question.body.decode().split()
        numbers = [int(word) for word in words if word.isdecimal()]
        answer = str(sum(numbers)) if "sum" in words else f"I can only add, {question.properties['by']}."
        self._producer.reply(question, answer.encode())


class Person:
    """Somebody who writes."""

    def __init__(self, client: metaq.Client, name: str) -> None:
        self.name = name
        self._producer = client.producer(f"chat-{name}")
        self._producer.start()

    def say(self, to: str, text: str) -> None:
        """Writes to a conversation: its name is the sharding key, which chooses the queue."""
        self._producer.send(LINES, self._line(to, text), key=to)

    def tell(self, to: str, lines: list[str]) -> None:
        for text in lines:
            self.say(to, text)

    def ask(self, text: str) -> str:
        """Waits for the answer of the bot. Raises NoReply if there is none in time."""
        reply = self._producer.request(QUESTIONS, text.encode(), properties={"by": self.name}, timeout=30)
        return reply.body.decode()

    def remind(self, to: str, text: str, delay: timedelta) -> Callable[[], str]:
        """Writes later; returns a function that takes the reminder back."""
        sent = self._producer.send(REMINDERS, self._line(to, text), delay=delay)
        return lambda: self._producer.recall(REMINDERS, sent.recall_handle)

    def _line(self, to: str, text: str) -> bytes:
        return json.dumps({"to": to, "by": self.name, "text": text}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description="Order per conversation, request and reply, reminders.")
    parser.add_argument(
        "--namesrv", help="name server of a running broker; by default a broker is started here"
    )
    given = parser.parse_args()
    with ExitStack() as stack:
        namesrv = given.namesrv or stack.enter_context(LocalMetaq()).nameserver
        client = stack.enter_context(metaq.Client(namesrv))
        room, _ = Room(client), Bot(client)
        ann, bob = Person(client, "ann"), Person(client, "bob")
        talks = {f"talk-{number}": [f"line {line}" for line in range(5)] for number in range(4)}
        writers = [threading.Thread(target=ann.tell, args=(to, lines)) for to, lines in talks.items()]
        ann.remind("kitchen", "the tea is ready", timedelta(seconds=1))
        take_back = bob.remind("kitchen", "the cake is burnt", timedelta(hours=1))
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        print("bot:", bob.ask("what is the sum of 20 and 22"), flush=True)
        take_back()
        wanted = {**talks, "kitchen": ["the tea is ready"]}
        while dict(room.seen) != wanted:
            time.sleep(0.05)
        print("every conversation is in order, and nothing was burnt")


if __name__ == "__main__":
    main()
