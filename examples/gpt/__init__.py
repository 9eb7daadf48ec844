"""A GPT, trained on text."""
