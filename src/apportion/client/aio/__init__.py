"""The client in its asynchronous form; the synchronous one is made from these files."""
