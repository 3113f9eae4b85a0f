"""Task sources: where problems come from. `protocol` says what one promises."""
