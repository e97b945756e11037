"""Fleet as code: tenants, sites, pools, offers, quotas and policies as one file."""
