"""What crosses between coordinator and clients: messages, their bytes, and what carries them."""
