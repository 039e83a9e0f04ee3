"""The messages between coordinator and clients, their bytes, and their transport."""
