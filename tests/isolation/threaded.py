"""A module that leaves a thread running."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
