"""Exercises that check themselves."""
