"""The OpenAPI document as a promise, tried on a real server process with its real database."""
