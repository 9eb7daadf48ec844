"""Pictures from words: Stable Diffusion, and a small model of clothing that is trained here."""
