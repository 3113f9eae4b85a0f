"""What a connection to Ray promises."""

import pytest

from windrow.cluster.ray.session import Session

pytestmark = pytest.mark.ray


def test_what_ray_has_to_say_of_processes_that_died_does_not_reach_the_console(
    ray_session: Session, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from ray._private import worker

    def say(text: str) -> None:
        worker.print_to_stdstream({"lines": [text], "pid": "raylet", "is_err": False}, ignore_prefix=False)

    say("a worker died")
    assert capfd.readouterr() == ("", "")
    assert ray_session.logs.is_dir()
    monkeypatch.setattr(worker, "_worker_logs_enabled", True)
    say("another one hangs")  # the same again would be held back
    assert "another one hangs" in capfd.readouterr().out  # so that is how it would have come
