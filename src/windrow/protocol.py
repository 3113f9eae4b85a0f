"""DataProto."""
