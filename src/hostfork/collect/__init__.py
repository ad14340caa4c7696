"""What a finished fork contains: the exact changeset, and its export."""
