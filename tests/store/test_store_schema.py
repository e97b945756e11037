"""The schema as it is and the migrations that lead to it give the same database."""

from importlib.resources import files

import pytest
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo

pytestmark = pytest.mark.anyio

# What is ours: in the schema public, of no extension, and not the migrations' own book.
VIEWS = """
    CREATE TEMP VIEW extensions AS SELECT objid FROM pg_depend WHERE deptype = 'e';
    CREATE TEMP VIEW ours AS SELECT * FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relname !~ '^schema_migrations'
        AND oid NOT IN (SELECT objid FROM extensions)
"""
# What PostgreSQL itself says about it: name and definition of every thing.
# Not the order of columns: one that is added comes last, and no statement of ours depends on it.
CATALOG = {
    "relation": """
        SELECT relname, concat_ws(' ', relkind, relpersistence, relrowsecurity, reloptions, relacl)
        FROM ours""",
    "column": """
        SELECT relname || '.' || attname, concat_ws(' ', format_type(atttypid, atttypmod),
            attnotnull, attidentity, attgenerated, attcollation::regcollation, attstorage,
            pg_get_expr(adbin, adrelid))
        FROM ours JOIN pg_attribute ON attrelid = ours.oid AND attnum > 0
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum""",
    "constraint": """
        SELECT relname || '.' || conname,
            concat_ws(' ', contype, convalidated, pg_get_constraintdef(pg_constraint.oid))
        FROM ours JOIN pg_constraint ON conrelid = ours.oid""",
    "index": """
        SELECT relname, concat_ws(' ', indisvalid, indisclustered, pg_get_indexdef(indexrelid))
        FROM ours JOIN pg_index ON indexrelid = ours.oid""",
    "sequence": """
        SELECT relname, concat_ws(' ', seqtypid::regtype, seqstart, seqincrement, seqmax, seqcycle)
        FROM ours JOIN pg_sequence ON seqrelid = ours.oid""",
    "view": """
        SELECT relname, pg_get_viewdef(oid) FROM ours WHERE relkind IN ('v', 'm')""",
    "policy": """
        SELECT relname || '.' || polname, concat_ws(' ', polcmd, pg_get_expr(polqual, polrelid))
        FROM ours JOIN pg_policy ON polrelid = ours.oid""",
    "trigger": """
        SELECT relname || '.' || tgname,
            concat_ws(' ', tgenabled, pg_get_triggerdef(pg_trigger.oid))
        FROM ours JOIN pg_trigger ON tgrelid = ours.oid AND NOT tgisinternal""",
    "function": """
        SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace AND prokind IN ('f', 'p')
        AND oid NOT IN (SELECT objid FROM extensions)""",
    "type": """
        SELECT typname, concat_ws(' ', typtype, format_type(typbasetype, typtypmod), typdefault,
            (SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder)
             FROM pg_enum WHERE enumtypid = pg_type.oid),
            (SELECT string_agg(pg_get_constraintdef(c.oid), ',' ORDER BY conname)
             FROM pg_constraint c WHERE contypid = pg_type.oid))
        FROM pg_type WHERE typnamespace = 'public'::regnamespace AND typtype IN ('d', 'e', 'r')
        AND oid NOT IN (SELECT objid FROM extensions)""",
    "comment": """
        SELECT concat_ws(' ', type, identity), description
        FROM pg_description CROSS JOIN LATERAL pg_identify_object(classoid, objoid, objsubid)
        WHERE identity LIKE '%public.%' AND objoid NOT IN (SELECT objid FROM extensions)""",
    "extension": "SELECT extname, extversion FROM pg_extension",
}


async def catalog(dsn: str):
    async with await AsyncConnection.connect(dsn) as connection:
        await connection.execute(VIEWS)
        found = set()
        for what, query in CATALOG.items():
            cursor = await connection.execute(query)
            found |= {(what, *row) for row in await cursor.fetchall()}
        return found


@pytest.fixture
async def from_schema(anyio_backend: str, postgres: str):
    """Give the dsn of a database made by schema.sql alone."""
    async with await AsyncConnection.connect(postgres, autocommit=True) as server:
        await server.execute("CREATE DATABASE from_schema")
        dsn = make_conninfo(postgres, dbname="from_schema")
        schema = files("apportion.store").joinpath("schema.sql").read_bytes()
        async with await AsyncConnection.connect(dsn) as connection:
            await connection.execute(schema)
        yield dsn
        await server.execute("DROP DATABASE from_schema WITH (FORCE)")


async def test_schema_and_migrations_give_equal_catalogs(dsn: str, from_schema: str):
    migrated, declared = await catalog(dsn), await catalog(from_schema)
    assert not migrated - declared
    assert not declared - migrated
    assert {"bookings_no_overlap", "bookings_pkey"} <= {
        name.partition(".")[2] for what, name, _ in declared if what == "constraint"
    }


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE pools ADD COLUMN extra text",
        "ALTER TABLE pools ALTER COLUMN version SET DEFAULT 2",
        "ALTER TABLE pools ALTER COLUMN name DROP NOT NULL",
        "ALTER TABLE pools ALTER COLUMN replicas TYPE bigint",
        "ALTER TABLE bookings DROP CONSTRAINT bookings_no_overlap",
        "ALTER TABLE bookings ALTER CONSTRAINT bookings_reservation_fkey NOT DEFERRABLE",
        "DROP INDEX bookings_changed",
        "CREATE INDEX extra ON pools (name)",
        "CREATE FUNCTION extra() RETURNS int LANGUAGE sql RETURN 1",
        "CREATE TRIGGER x AFTER UPDATE ON pools EXECUTE FUNCTION tsvector_update_trigger()",
        "CREATE VIEW extra AS SELECT 1 AS one",
        "CREATE TYPE extra AS ENUM ('a')",
        "CREATE DOMAIN extra AS int CHECK (VALUE > 0)",
        "CREATE SEQUENCE extra",
        "COMMENT ON TABLE pools IS 'extra'",
        "COMMENT ON COLUMN pools.name IS 'extra'",
        "COMMENT ON CONSTRAINT pools_pkey ON pools IS 'extra'",
        "CREATE EXTENSION pg_trgm",
    ],
)
async def test_the_comparison_sees_every_kind_of_difference(dsn: str, change: str):
    before = await catalog(dsn)
    async with await AsyncConnection.connect(dsn) as connection:
        await connection.execute(sql.SQL(change))
    assert await catalog(dsn) != before
