-- Series in a list, newest first.

CREATE INDEX series_by_tenant ON series (tenant_id, created_at, id);
