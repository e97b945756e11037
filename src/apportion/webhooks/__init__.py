"""Where tenants want to be told what happened, and the telling."""
