"""PostgreSQL: the embedded server, connections, migrations, named SQL, refusals in our words."""
