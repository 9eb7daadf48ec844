"""Programs written with minigrad: a chat with a language model, image classification, a training benchmark."""
