"""PostgreSQL: the embedded server, connections, migrations, named SQL, and its refusals in our words."""
