"""The version of loaderviz, in the one place that has it."""

__version__ = "0.2.0.dev0"
