"""What keeps an allocation from its next step: a reason for scripts, a sentence for people."""


class HeldUpError(Exception):
    """The step cannot be taken now; the next round tries it again."""

    def __init__(self, reason: str, message: str) -> None:
        """Say why, as a code and as a sentence."""
        super().__init__(message)
        self.reason = reason
        self.message = message
