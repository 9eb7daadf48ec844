"""A model of the time that plans take."""
