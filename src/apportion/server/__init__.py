"""The server: assembly of the rooms, and the doors to them."""
