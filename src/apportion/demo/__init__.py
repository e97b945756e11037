"""A real fleet and its real tasks to look at: a public production trace beside a small MIG pool."""
