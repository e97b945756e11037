"""Handing each holder exactly its device, and taking it back before anybody else gets it."""
