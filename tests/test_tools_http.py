"""The ``http`` tool against a real server."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter

import pytest
from aiohttp import web

from tools.base import ToolCall
from tools.http import Http
from tools.registry import Toolbox
from tools.runner import run_calls

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}


class Server:
    """Echoes what it is asked; paths below /bad misbehave."""

    def __init__(self):
        self.seen: Counter[str] = Counter()

    async def __aenter__(self):
        app = web.Application()
        app.router.add_route("*", "/echo/{rest:.*}", self.echo)
        app.router.add_route("*", "/bad/{how}", self.bad)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()

    async def echo(self, request):
        value = {"method": request.method, "path": request.raw_path, "body": (await request.text()) or None}
        return web.json_response(value | {"key": request.headers.get("X-Key")})

    async def bad(self, request):
        how = request.match_info["how"]
        self.seen[how] += 1
        match how:
            case "hang":
                await asyncio.sleep(30)
            case "busy":  # twice
                return web.json_response([1]) if self.seen[how] > 2 else web.Response(status=503, text="later")
            case "drop":
                request.transport.close()
            case "huge":
                return web.Response(body=b"y" * 5_000_000)
            case "bomb":
                response = web.json_response(" " * 5_000_000)
                response.enable_compression()
                return response
            case "broken":
                return web.Response(text="{", content_type="application/json")
            case "away":
                raise web.HTTPFound("http://169.254.169.254/latest")
            case "binary":
                return web.Response(body=b"\0\1\2", content_type="image/png")
            case "charset":
                return web.Response(body="é".encode("latin-1"), headers={"Content-Type": "text/plain; charset=latin-1"})
        return web.Response(status=404, text="no such thing " * 100)


@pytest.fixture
async def server():
    async with Server() as running:
        yield running


def tool(server, path, **options):
    base = {"name": "weather", "description": "Weather.", "parameters": CITY, "timeout_s": 10, "retries": 0}
    return Http(**base | {"url": server.url + path} | options)


async def call(http, **arguments):
    [result] = await run_calls([http], [ToolCall("weather", {"city": "Old Dover"} | arguments)])
    await http.shutdown()
    return result


async def test_places_go_into_the_path_and_the_rest_into_the_query(server):
    result = await call(tool(server, "/echo/{city}/now"), city="a/b?c=d #é", days=3)
    assert result.data["path"] == "/echo/a%2Fb%3Fc=d%20%23%C3%A9/now?days=3" and result.fault is None
    assert json.loads(result.text) == result.data, "JSON is shown as JSON"


async def test_the_rest_is_the_body_where_the_method_has_one(server):
    result = await call(tool(server, "/echo/x", method="POST"), days=3)
    assert result.data["method"] == "POST" and json.loads(result.data["body"]) == {"city": "Old Dover", "days": 3}


@pytest.mark.parametrize("city", [".", "..", ""])
async def test_a_place_leads_to_no_other_path(server, city):
    result = await call(tool(server, "/echo/{city}/now"), city=city)
    assert result.fault == "error" and "may not be" in result.text


async def test_keys_come_from_the_environment(server, monkeypatch):
    http = tool(server, "/echo/x", headers={"X-Key": "Bearer ${WEATHER_KEY}"})
    with pytest.raises(ValueError, match=r"\$\{WEATHER_KEY\} is not set"):
        await http.prepare()
    monkeypatch.setenv("WEATHER_KEY", "k1")
    await http.prepare()
    result = await call(http)
    assert result.data["key"] == "Bearer k1"


@pytest.mark.parametrize(
    ("path", "fault", "words"),
    [
        ("/bad/hang", "timeout", "no answer within 0.5 s"),
        ("/bad/drop", "error", "cannot be reached: ServerDisconnected"),
        ("/bad/huge", "error", "larger than 1000000 bytes"),
        ("/bad/bomb", "error", "larger than 1000000 bytes"),
        ("/bad/broken", "error", "broken JSON"),
        ("/bad/away", "error", "status 302"),
        ("/bad/binary", "not_text", "binary"),
        ("/bad/none", "error", "status 404: no such thing"),
    ],
)
async def test_what_a_service_does_wrong_is_a_short_message(server, path, fault, words):
    started = time.perf_counter()
    result = await call(tool(server, path, timeout_s=0.5 if path == "/bad/hang" else 10))
    assert result.fault == fault and words in result.text and len(result.text) < 400
    assert time.perf_counter() - started < 10


async def test_text_is_decoded_as_the_service_says(server):
    assert (await call(tool(server, "/bad/charset"))).text == "é"


async def test_a_busy_service_is_asked_again_and_a_broken_connection_too(server):
    assert (await call(tool(server, "/bad/busy", retries=2))).data == [1] and server.seen["busy"] == 3
    assert (await call(tool(server, "/bad/drop", retries=2))).fault == "error" and server.seen["drop"] >= 3
    assert (await call(tool(server, "/bad/none", retries=2))).fault == "error" and server.seen["none"] == 1


async def test_a_post_that_may_have_had_its_effect_is_not_repeated(server):
    for how in ("hang", "drop"):
        result = await call(tool(server, f"/bad/{how}", method="POST", retries=2, timeout_s=2))
        assert result.fault is not None
        assert server.seen[how] == 1


async def test_nobody_there():
    async with Server() as gone:
        pass
    result = await call(tool(gone, "/echo/x", retries=1))
    assert result.fault == "error" and "cannot be reached: ClientConnectorError" in result.text


async def test_from_the_configuration_many_at_once(server):
    args = {"name": "weather", "description": "", "url": f"{server.url}/echo/{{city}}", "parameters": CITY}
    box = Toolbox([{"path": "http", "args": args}])
    tools = await box.open()
    results = await run_calls(tools, [ToolCall("weather", {"city": str(n)}) for n in range(50)])
    assert [r.data["path"] for r in results] == [f"/echo/{n}" for n in range(50)]
    await box.shutdown()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "http://{city}/x"}, "may not choose the host"),
        ({"url": "http://h/{town}"}, "{town} must be among the required"),
        ({"url": "http://h/{days}"}, "{days} must be among the required"),
        ({"parameters": {"type": "array"}}, '"type": "object"'),
        ({"parameters": {"type": "nonsense"}}, "not a JSON schema"),
        ({"method": "BREW"}, "method"),
        ({"name": "a b"}, "name"),
    ],
)
def test_wrong_options_are_refused(options, words):
    base = {"name": "x", "description": "", "url": "http://h/{city}", "parameters": CITY}
    with pytest.raises(ValueError, match=words):
        Http(**base | options)
