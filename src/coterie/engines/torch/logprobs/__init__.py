"""A language model's log-probabilities for learning: rows packed, prompts shared, logits never whole."""
