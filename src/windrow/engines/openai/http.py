"""Bytes over HTTP: the only module that knows aiohttp, and the only one that needs it.

Promises: an answer that broke off is told from one that never came. Connections of data and of control are counted
apart, so a call that pauses a server never waits behind what it is to pause. The key is sent and never shown.
"""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp

from windrow.engines.openai.settings import OpenAISettings
from windrow.engines.openai.wire import BrokenOff, Unanswered
from windrow.types import Value, to_json

CONTROL_CONNECTIONS = 8
"""Kept free for control beside those of `capacity`."""
LONGEST_ERROR = 1 << 16
"""Bytes of a server's complaint that are read."""


class Reply(Value, frozen=True):
    """A whole answer."""

    status: int
    content: bytes


class Answer:
    """An answer that is being read."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def is_complete(self) -> bool:
        return self._response.content.at_eof()

    def retry_after_s(self) -> float | None:
        """How long the server wants to be left alone; None if it does not say."""
        return _seconds(self._response.headers.get("Retry-After", ""))

    async def more(self) -> bytes:
        """What has come, at least one byte; none at the end."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenOff(_words(error)) from error

    def at_hand(self) -> bytes:
        """What has come and was not read yet."""
        try:
            return self._response.content.read_nowait()
        except (aiohttp.ClientError, OSError):
            return b""  # it broke off; `more` will say so
        except RuntimeError:
            return b""  # a reader waits for bytes, so there are none

    async def complaint(self) -> bytes:
        """The beginning of an error's text."""
        try:
            return await self._response.content.read(LONGEST_ERROR)
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenOff(_words(error)) from error

    def close(self) -> None:
        """Stop listening; the connection is kept if the answer is complete and closed if it is not."""
        if self.is_complete:
            self._response.release()
        else:
            self._response.close()


class Http:
    """Connections to one server."""

    def __init__(self, settings: OpenAISettings) -> None:
        key = settings.key()
        self._root = settings.root
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=settings.capacity + CONTROL_CONNECTIONS),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # callers have deadlines of their own
        )

    async def ask(self, path: str, body: object, request_id: str) -> Answer:
        """Send a question; returns when the answer begins."""
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        try:
            response = await self._session.post(self._root + path, data=to_json(body), headers=headers)
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(_words(error)) from error
        return Answer(response)

    async def get(self, path: str) -> Reply:
        return await self._call("GET", path, None)

    async def post(self, path: str, body: object = None) -> Reply:
        return await self._call("POST", path, body)

    async def close(self) -> None:
        await self._session.close()

    async def _call(self, method: str, path: str, body: object) -> Reply:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        data = to_json(body) if body is not None else None
        try:
            async with self._session.request(method, self._root + path, data=data, headers=headers) as response:
                return Reply(response.status, await response.read())
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(_words(error)) from error


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _seconds(header: str) -> float | None:
    """Retry-After: a number of seconds, or a date."""
    if header.isdecimal():
        return float(header)
    try:
        when = parsedate_to_datetime(header)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
