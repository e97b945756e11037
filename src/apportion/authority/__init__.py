"""Who is calling, and may it: tokens read, roles, and policies decided by Cedar."""
