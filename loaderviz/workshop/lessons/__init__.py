"""What each lesson has of its own: its exercises and their checks, and what its notebook imports beside them."""
