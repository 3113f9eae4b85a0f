"""A journal on disk: it appears under its name only when it is whole, and leaves nothing behind when it is not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from windrow.core.events import AnyEvent
from windrow.core.journal import header, line
from windrow.core.settings import Settings
from windrow.errors import WindrowError

Write = Callable[[float, AnyEvent], None]


@contextmanager
def written(path: Path, settings: Settings) -> Iterator[Write]:
    """Write every event given to the function that this yields."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(header(settings) + b"\n")

            def write(now: float, event: AnyEvent) -> None:
                file.write(line(now, event) + b"\n")

            yield write
        part.replace(path)
    except OSError as error:
        raise WindrowError(f"{path}: the journal cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
