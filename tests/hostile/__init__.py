"""What a stranger could send us, and what must then not happen: ``python -m tests.hostile``, or
``make attack``."""
