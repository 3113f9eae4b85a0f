"""Engines: whatever generates. `protocol` says what one promises; the implementations beside it never meet."""
