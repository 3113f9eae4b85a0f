"""These tests need a server; `make test-vllm` starts one. Without it they are not even collected."""

import os

collect_ignore_glob = [] if os.environ.get("WINDROW_VLLM_URL") else ["test_*.py"]
