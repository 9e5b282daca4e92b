"""MLflow's pages open in the mode for model training; their own default is the one for generative AI.

The mode is kept by each browser. The page gets one line that sets it where a browser has none yet, so whoever chooses the
other mode keeps it.
"""

from storage.asgi import Application, Message, Receive, Send

LINE = b"""<script>localStorage["mlflow.workflowType_v1"] ??= '"machine_learning"'</script>"""
"""As MLflow 3.17's own pages keep the mode."""

_PAGES = ("/", "/index.html")
_CONDITIONS = (b"if-none-match", b"if-modified-since")
_OF_THE_FILE = (b"content-length", b"etag", b"last-modified")


def opening_as_model_training(app: Application) -> Application:
    """The application, with `LINE` in its page."""

    async def changed(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] not in _PAGES:
            await app(scope, receive, send)
            return
        start: Message = {}
        body = b""

        async def collect(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
                return
            body += message.get("body", b"")
            if message.get("more_body", False):
                return
            page = body.replace(b"</head>", LINE + b"</head>", 1)
            headers = [(name, value) for name, value in start["headers"] if name.lower() not in _OF_THE_FILE]
            headers.append((b"content-length", str(len(page)).encode()))
            await send({**start, "headers": headers})
            await send({"type": "http.response.body", "body": page})

        asked = [(name, value) for name, value in scope["headers"] if name.lower() not in _CONDITIONS]
        await app({**scope, "headers": asked}, receive, collect)

    return changed
