"""The asyncio shell around the core: it turns the outside world into events and carries commands out."""
