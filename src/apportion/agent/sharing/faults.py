"""What keeps a GPU from being shared as it was asked."""


class Hindered(Exception):  # noqa: N818 - it is a finding that ends a step, and no error of ours
    """The next step cannot be taken now: why, in a code, in words, and about whom.

    ``reason`` and ``objects`` go into the unit's outcome as they are (docs/reference/gpu-sharing.md
    lists the codes).
    """

    def __init__(self, reason: str, message: str, *objects: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.objects = objects
