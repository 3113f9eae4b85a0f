"""Settings of a server, and the key that is none."""

import pytest

from windrow.engines.openai import OpenAIEngine, OpenAISettings
from windrow.errors import ConfigError
from windrow.types import but

SETTINGS = OpenAISettings(base_url="http://127.0.0.1:1", model="m", context_tokens=100)


@pytest.mark.parametrize(
    "url", ["http://host:8000", "http://host:8000/", "http://host:8000/v1", "http://host:8000/v1/"]
)
def test_the_base_url_may_end_in_v1(url: str):
    assert but(SETTINGS, base_url=url).root == "http://host:8000"


def test_a_base_url_is_a_url():
    with pytest.raises(ConfigError, match="base_url must begin with http"):
        OpenAISettings(base_url="host:8000", model="m", context_tokens=100)


def test_the_key_comes_from_the_environment_and_is_never_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_KEY", "hush")
    settings = but(SETTINGS, api_key_env="SECRET_KEY")
    assert settings.key() == "hush"
    assert "hush" not in repr(settings)
    assert "hush" not in repr(OpenAIEngine("one", settings).__dict__)


def test_a_key_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SECRET_KEY", raising=False)
    with pytest.raises(ConfigError, match="SECRET_KEY, which is not set"):
        but(SETTINGS, api_key_env="SECRET_KEY").key()


def test_traits_are_known_before_the_start():
    plain = OpenAIEngine("one", SETTINGS, devices=(2,)).traits
    assert (plain.can_train, plain.can_freeze, plain.can_load, plain.devices) == (True, False, False, (2,))
    vllm = OpenAIEngine("one", but(SETTINGS, flavour="vllm", require_training=False)).traits
    assert (vllm.can_train, vllm.can_freeze, vllm.can_load, vllm.deterministic) == (False, True, True, False)
