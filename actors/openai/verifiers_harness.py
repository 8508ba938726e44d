"""The plainest agent of the ``verifiers`` library, in this process: chat, the task's MCP tools, an answer.

The library's own (``null``) starts a Python program for each episode, in an environment that it
installs first.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import openai
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

from actors.openai.errors import CONTEXT_LENGTH, EPISODE_LIMIT

__all__ = ["ChatHarness"]

_CONNECT_S = 60.0


class ChatHarness(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Turns until one calls no tool, or a limit of the episode refuses another."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        elif prompt is not None:
            messages += [message_to_wire(message) for message in prompt]
        async with AsyncExitStack() as stack:
            # Within this machine there are no certificates to check; loading them would cost each episode.
            http = openai.DefaultAsyncHttpxClient(verify=not endpoint.startswith("http://"))
            client = await stack.enter_async_context(
                openai.AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=http)
            )
            servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            async with asyncio.timeout(_CONNECT_S):
                tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            try:
                await _chat(client, ctx.model, messages, tools, dispatch, connections)
            except openai.APIStatusError as error:
                if not any(code in str(error) for code in (CONTEXT_LENGTH, EPISODE_LIMIT)):
                    raise
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def _chat(
    client: openai.AsyncOpenAI,
    model: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    dispatch: dict[str, Any],
    connections: dict[str, Any],
) -> None:
    while True:
        completion = await client.chat.completions.create(model=model, messages=messages, tools=tools or openai.omit)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            name = call.function.name
            if name in dispatch:
                content = await call_mcp(connections, dispatch, name, json.loads(call.function.arguments))
            else:
                content = f"error: there is no tool {name!r}"
            messages.append({"role": "tool", "tool_call_id": call.id, "name": name, "content": content})
