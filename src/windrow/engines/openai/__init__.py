"""Any server that speaks OpenAI's completions API over HTTP, a vLLM server among them.

| module | what it is |
| --- | --- |
| `settings` | what a user may choose |
| `wire` | the words of the API: what is asked, what comes back, what each kind of server cannot do |
| `http` | the only place that knows aiohttp |
| `flight` | one request on its way |
| `probe` | what a server can do, found out by asking it |
| `control` | how a server is paused, loaded and put to sleep |
| `engine` | the engine: gate, books, and who does what when |
"""

from windrow.engines.openai.engine import OpenAIEngine
from windrow.engines.openai.settings import OpenAISettings

__all__ = ["OpenAIEngine", "OpenAISettings"]
