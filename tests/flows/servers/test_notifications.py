"""Messages about failed retrainings arrive at a webhook and by e-mail; the automation itself: `test_processes.py`."""

import json
import socketserver
from email import message_from_string
from http.server import HTTPServer

import pytest

from flows.servers import notifications
from tests.helpers.receivers import Webhook, receiving

SUBJECT, BODY = "dreamshard: retrain failed", "there is no file tables.csv\n\nhttp://127.0.0.1:4200/v2/runs/flow-run/1"


class Mail(socketserver.StreamRequestHandler):
    """The part of SMTP that a client needs to deliver one message."""

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            command = line.split()[0].upper()
            if command == b"QUIT":
                return
            self.wfile.write(b"354 go on\r\n" if command == b"DATA" else b"250 ok\r\n")
            if command == b"DATA":
                content = iter(lambda: self.rfile.readline().decode().rstrip("\r\n"), ".")
                self.server.messages.append("\n".join(content))
                self.wfile.write(b"250 ok\r\n")


def test_a_webhook_gets_subject_and_body_as_json():
    with receiving(HTTPServer(("127.0.0.1", 0), Webhook)) as (port, messages):
        block = notifications.block_for(f"http://127.0.0.1:{port}/hook?token=s3cret")
        block.notify(body=BODY, subject=SUBJECT)
    assert "s3cret" not in str(block.model_dump(mode="json")), "as Prefect's page Blocks shows it"
    assert json.loads(messages[0]) == {"subject": SUBJECT, "body": BODY, "text": f"{SUBJECT}\n{BODY}"}


def test_an_address_of_mail_is_written_to():
    with receiving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail)) as (port, messages):
        address = f"mailto://127.0.0.1:{port}?from=us@example.com&to=team@example.com&mode=insecure&format=text"
        notifications.check(address)
        notifications.block_for(address).notify(body=BODY, subject=SUBJECT)
    mail = message_from_string(messages[0])
    assert (mail["To"], mail["Subject"]) == ("team@example.com", SUBJECT)
    assert mail.get_payload(decode=True).decode().splitlines() == BODY.splitlines()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://hooks.example.com/services/s3cret", "https://hooks.example.com"),
        ("http://127.0.0.1:8080/hook", "http://127.0.0.1:8080"),
        ("mailtos://ada:s3cret@smtp.example.com?to=team@example.com", "mailtos://smtp.example.com"),
        ("mailtos://ada:s3?cret@smtp.example.com", "mailtos://..."),
        ("discord://webhook/s3cret", "discord://..."),
    ],
)
def test_an_address_is_named_without_its_secrets(address, name):
    assert notifications._without_secrets(address) == name


@pytest.mark.parametrize("asked", ["nobody", "slack-webhook/", "a/b/c", "pigeon://roof"])
def test_what_nothing_can_be_sent_to_is_refused_and_no_address_is_repeated(asked):
    with pytest.raises(ValueError, match=r"DREAMSHARD_NOTIFY is .* nobody would be notified .*mailtos://"):
        notifications.check(asked)
