"""nereus: an add-on for verl. Importing this package imports nothing heavy and changes nothing."""

__version__ = "0.1.0"
