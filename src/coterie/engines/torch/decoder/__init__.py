"""Decoding for language models on a GPU: graphs that are replayed, slots that answers come and go in."""
