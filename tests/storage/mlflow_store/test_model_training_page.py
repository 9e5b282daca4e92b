import asyncio

import httpx

from storage.mlflow_store.model_training_page import LINE, opening_as_model_training

PAGE = b"<html><head><title>MLflow</title></head><body></body></html>"


async def mlflow(scope, receive, send):
    """Answers as MLflow's server does: its page in two parts, and everything else as it is asked for."""
    conditions = [name for name, _ in scope["headers"] if name == b"if-none-match"]
    headers = [(b"content-type", b"text/html"), (b"content-length", b"%d" % len(PAGE)), (b"etag", b'"file"')]
    await send({"type": "http.response.start", "status": 304 if conditions else 200, "headers": headers})
    await send({"type": "http.response.body", "body": PAGE[:20], "more_body": True})
    await send({"type": "http.response.body", "body": PAGE[20:]})


def get(path: str, **headers: str) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(opening_as_model_training(mlflow))
        async with httpx.AsyncClient(transport=transport, base_url="http://mlflow") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(asked())


def test_the_page_sets_the_mode_of_a_browser_that_has_none():
    answer = get("/", **{"If-None-Match": '"file"'})
    assert answer.status_code == 200, "a page that the browser keeps may lack the line"
    assert answer.content == PAGE.replace(b"</head>", LINE + b"</head>")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "etag" not in answer.headers


def test_all_other_answers_are_mlflows_own():
    assert get("/static-files/main.js").content == PAGE
    assert get("/static-files/main.js").headers["etag"] == '"file"'
