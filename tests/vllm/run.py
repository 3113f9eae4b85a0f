"""Starts a vLLM server, runs the tests of this folder against it, and stops it: `run.py PYTHON_WITH_VLLM [pytest …]`.

It is no part of CI: the server needs 3.5 GB of packages and a minute to start. Everything it writes is in a folder
of its own under /tmp, whose name it prints when something goes wrong.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
START_S = 600
STOP_S = 30
SMALL = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # without it there is no pause, no reload and no sleep
}


def main(python: str, *pytest: str) -> int:
    with tempfile.TemporaryDirectory(prefix="windrow-vllm-") as folder:
        models = Path(folder)
        env = {**os.environ, **SMALL, "WINDROW_VLLM_MODELS": folder, "PYTHONPATH": str(HERE)}
        subprocess.run([sys.executable, str(HERE / "models.py"), folder], check=True, env=env)
        with server(python, models, env) as url:
            env["WINDROW_VLLM_URL"] = url
            command = [sys.executable, "-m", "pytest", *(pytest or (str(HERE),)), "--numprocesses=0"]
            return subprocess.run(command, check=False, env=env, cwd=HERE.parent.parent).returncode


@contextmanager
def server(python: str, models: Path, env: dict[str, str]):
    """A server on a free port; stopped by its process id, whatever happens."""
    port = _free_port()
    log = models / "server.log"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models / "weights0")]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-model-len", "1024"]
    # a seeded request whose prompt is computed in parts kills a server on a CPU: "CPU Generator does not use offset"
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048"]
    command += ["--max-num-seqs", "64", "--logprobs-mode", "processed_logprobs", "--no-enable-log-requests"]
    command += ["--logits-processors", "brake:Brake"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            _wait(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            _stop(process)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it serves; a script may look again and again."""
    began = time.monotonic()
    while time.monotonic() - began < START_S:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 -- our own server
                sys.stdout.write(f"vLLM serves at {url} after {time.monotonic() - began:.0f} s\n")
                sys.stdout.flush()
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    sys.exit(f"vLLM did not start; the end of its log:\n{log.read_text()[-4000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
