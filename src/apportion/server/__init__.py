"""The HTTP server: settings, the application, and what the rooms' routes share."""
