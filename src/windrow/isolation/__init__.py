"""Objects that live in a thread or a process of their own, so that they may block, hang or crash.

`hosts.Hosts` keeps processes ready and lends them; `threads.Threads` does the same with threads. Neither knows what the
objects are for: whoever lends one calls its methods by name.

```
our process                          a nest: fresh interpreter, one thread, has the factory loaded
  Hosts ── Keeper ── control ──────── Nest ── fork ──┐
    └── Host ── wire ────────────────────────────── Guest: one object, one event loop
```
"""
