"""The node daemon: reports what is there, makes it what was asked, hands holders their devices."""
