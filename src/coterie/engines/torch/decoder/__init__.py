"""How language models write answers: on a GPU graphs that are replayed, elsewhere plain operations."""
