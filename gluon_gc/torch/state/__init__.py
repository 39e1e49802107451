"""state_dicts, suspension and resumption."""
