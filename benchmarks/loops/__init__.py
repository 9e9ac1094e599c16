"""Loops whose slow part is known: `own` by who wrote the analysis, `strangers` by who had not read it."""
