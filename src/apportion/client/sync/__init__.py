# Made from client/aio/__init__.py by tools/unasync.py: change that one.
"""The client in its asynchronous form; the synchronous one is made from these files."""
