"""Objects that live in a process or a thread of their own, so that they may hang or crash."""
