"""Real Hugging Face models and a real tokenizer, small enough to be made on the spot."""

from windrow.tiny import END, VOCABULARY, Kind, tiny_model, tiny_tokenizer

__all__ = ["END", "VOCABULARY", "Kind", "tiny_model", "tiny_tokenizer"]
