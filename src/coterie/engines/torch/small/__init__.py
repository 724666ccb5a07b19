"""Small policies: their transformer, and how it writes answers on a CPU and on a GPU."""
